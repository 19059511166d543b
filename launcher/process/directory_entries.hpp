// The entries of a directory without allocation: usable in a signal handler.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <string_view>

namespace dtrun::launcher {

// Calls visit(name) for every entry of the open directory but "." and ".."; the name ends with a NUL. False from visit
// ends it, and is the result.
template <class Visit>
bool visit_entries(int directory, Visit visit) noexcept {
  alignas(8) char buffer[4096];
  for (;;) {
    const long n = ::syscall(SYS_getdents64, directory, buffer, sizeof buffer);
    if (n <= 0) return true;
    for (long at = 0; at < n;) {
      // struct linux_dirent64: ino 8, off 8, reclen 2, type 1, name
      const auto* entry = reinterpret_cast<const unsigned char*>(buffer + at);
      const std::string_view name(buffer + at + 19);
      if (name != "." && name != ".." && !visit(name)) return false;
      at += static_cast<unsigned>(entry[16]) | static_cast<unsigned>(entry[17]) << 8;
    }
  }
}

}  // namespace dtrun::launcher
