#include "launcher/logs/log_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace dtrun::launcher {

LogFile::LogFile(std::string path) : path_(std::move(path)) {
  fd_.reset(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644));
  if (!fd_) open_error_ = errno;
}

std::string LogFile::write(std::string_view bytes) {
  int error = open_error_;
  while (error == 0 && !bytes.empty()) {
    const ssize_t n = ::write(fd_.value(), bytes.data(), bytes.size());
    if (n >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(n));
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  const bool first = error != 0 && lost_bytes_ == 0;
  lost_bytes_ += bytes.size();
  if (!first) return {};
  return fmt::format("[logs] {} cannot be written: {}; the worker goes on, its output is lost there until it can",
                     path_, std::generic_category().message(error));
}

std::string LogFile::take_loss() {
  const auto lost = lost_bytes_ - std::exchange(told_bytes_, lost_bytes_);
  return lost == 0 ? std::string() : fmt::format("dtrun: {} bytes are missing in {}", lost, path_);
}

}  // namespace dtrun::launcher
