#include "rendezvous/contract/progress_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstring>

namespace dtrun {
namespace {

constexpr std::size_t kWidth = 20;  // of the number: every std::int64_t fits

}  // namespace

ProgressWriter::ProgressWriter(const std::optional<std::string>& path) {
  if (path && !path->empty()) file_.reset(::open(path->c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
}

void ProgressWriter::finished_steps(std::int64_t count) noexcept {
  if (!file_) return;
  char line[kWidth + 2];
  const int size = std::snprintf(line, sizeof line, "%*lld\n", static_cast<int>(kWidth), static_cast<long long>(count));
  if (::pwrite(file_.value(), line, static_cast<std::size_t>(size), 0) != size) file_.reset();
}

std::optional<std::int64_t> read_progress(const std::string& path) {
  const UniqueFd file(path.empty() ? -1 : ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  char text[kProgressFileMost];
  const ssize_t size = file ? ::read(file.value(), text, sizeof text) : -1;
  if (size <= 0) return {};
  const char* const end = text + size;
  const char* at = text;
  while (at != end && *at == ' ') ++at;
  std::int64_t count = 0;
  const auto [stop, error] = std::from_chars(at, end, count);
  if (error != std::errc() || count < 0 || (stop != end && *stop != '\n')) return {};
  return count;
}

}  // namespace dtrun
