// Writing a file piece by piece so that a reader sees all of it or what was there before. (Small texts, with problems
// as values: whole_file.hpp.)
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "rendezvous/base/unique_fd.hpp"

namespace dtrun {

// Written beside its place under a temporary name and renamed by commit(); without commit the destructor removes it and
// what was there before stays. A symbolic link keeps pointing where it did: its target is replaced. Whatever is not a
// regular file (/dev/stdout, /dev/full, a FIFO) is written directly and never replaced: a FIFO that nobody reads gets a
// second, a reader that takes nothing a minute. A file that may not be written is not replaced either. One thread.
// Throws SystemError in the name of `area`, with the path.
class OutputFile {
 public:
  enum class Durable { no, yes };  // yes: on the disk when commit() returns

  OutputFile(std::string area, std::string path, Durable durable = Durable::no);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void commit();

 private:
  void open_directly();
  void open_temporary(unsigned mode);
  [[noreturn]] void fail(std::string_view what) const;

  std::string area_;
  std::string path_;       // as given, for messages
  std::string target_;     // behind symbolic links; empty when written directly
  std::string temporary_;  // beside it; empty once it is in place
  Durable durable_;
  UniqueFd file_;
};

// The regular file that an OutputFile of this path puts in place, whether or not there is one now; empty when the path
// is written directly.
std::string regular_target(const std::string& path);

// Before hours of work whose result goes there: throws SystemError when `path` could not be written now. Leaves nothing
// behind and does not open what is not a regular file.
void check_writable(std::string_view area, const std::string& path);

}  // namespace dtrun
