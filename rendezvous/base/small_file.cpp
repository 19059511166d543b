#include "rendezvous/base/small_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include "rendezvous/base/unique_fd.hpp"

namespace dtrun {

std::string read_small_file(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  char buffer[4096];
  const ssize_t size = fd ? ::read(fd.value(), buffer, sizeof buffer) : -1;
  return size > 0 ? std::string(buffer, static_cast<std::size_t>(size)) : std::string();
}

}  // namespace dtrun
