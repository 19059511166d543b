// Making a directory of files so that a reader sees all of it or what was there before.
#pragma once

#include <filesystem>
#include <string>

#include "rendezvous/base/unique_fd.hpp"

namespace dtrun::runtime {

// Filled under a temporary name beside its place, and renamed by commit(); without commit the destructor removes it and
// what was there before stays. What earlier processes left under such names is removed first: the owner of one that is
// being filled holds a lock on it. A symbolic link keeps pointing where it did. One thread. Throws SystemError in the
// name of `area`.
class OutputDirectory {
 public:
  enum class Existing { keep, replace };  // keep: only what is empty, or not there, is written

  OutputDirectory(std::string area, const std::filesystem::path& place, Existing existing);
  OutputDirectory(const OutputDirectory&) = delete;
  OutputDirectory& operator=(const OutputDirectory&) = delete;
  ~OutputDirectory();

  // Where its files are written; each is durable once its writer says so.
  const std::filesystem::path& temporary() const noexcept { return temporary_; }
  // Durable when it returns.
  void commit();

 private:
  void remove_leftovers() const;
  std::string prefix() const { return "." + place_.filename().string() + ".new_"; }

  std::string area_;
  std::filesystem::path place_;  // behind symbolic links
  Existing existing_;
  std::filesystem::path temporary_;  // empty once it is in place
  UniqueFd lock_;
};

}  // namespace dtrun::runtime
