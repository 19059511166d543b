// Whole reads and writes of files, with errors that name the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "rendezvous/base/unique_fd.hpp"

namespace dtrun::runtime {

// Reads exactly `out.size()` bytes at `offset`. Throws SystemError, or Error when the file ends before.
void read_at(const UniqueFd& file, const std::string& path, std::uint64_t offset, std::span<std::byte> out);

// A file that appears under its name only when it is complete: written beside it, fsync'd, renamed by commit(). Without
// commit the destructor removes it and what was there before stays. One thread. Throws SystemError.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(std::span<const std::byte> bytes);
  void commit();

 private:
  std::string path_;
  std::string temporary_;
  UniqueFd file_;
};

}  // namespace dtrun::runtime
