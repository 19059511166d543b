#include "launcher/process/process_title.hpp"

#include <sys/prctl.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace dtrun::launcher {

void set_process_title(int argc, char** argv, const char* title) noexcept {
  ::prctl(PR_SET_NAME, title, 0, 0, 0);  // the kernel cuts it to 15 characters
  if (argc < 1) return;
  // The kernel lays the arguments out one after the other.
  char* end = argv[0];
  for (int i = 0; i < argc && argv[i] == end; ++i) end += std::strlen(argv[i]) + 1;
  const auto size = static_cast<std::size_t>(end - argv[0]);
  std::memset(argv[0], 0, size);
  std::memcpy(argv[0], title, std::min(std::strlen(title), size - 1));
}

}  // namespace dtrun::launcher
