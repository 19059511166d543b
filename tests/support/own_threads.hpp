// How many threads this process has, as the kernel counts them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <iterator>

namespace dtrun::test {

inline std::size_t threads_of_this_process() {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator()));
}

}  // namespace dtrun::test
