#include "rendezvous/base/whole_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <system_error>

#include "rendezvous/base/error.hpp"
#include "rendezvous/base/output_file.hpp"
#include "rendezvous/base/unique_fd.hpp"

namespace dtrun {
namespace {

// The line that says why not, or nothing.
template <class Action>
std::string problem_of(const std::string& path, Action action) {
  int error = 0;
  try {
    action();
    return {};
  } catch (const SystemError& failure) {
    error = failure.error_number();
  }
  return fmt::format("{} cannot be written: {}", path, std::generic_category().message(error));
}

// A file that may be written in a directory that may not.
bool only_in_place(const std::string& path, const SystemError& error) {
  return error.error_number() == EACCES && ::access(path.c_str(), W_OK) == 0;
}

void write_in_place(const std::string& path, std::string_view bytes) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC));
  if (!fd) throw_errno("file", path);
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd.value(), bytes.data(), bytes.size());
    if (n < 0 && errno != EINTR) throw_errno("file", path);
    if (n > 0) bytes.remove_prefix(static_cast<std::size_t>(n));
  }
}

void write_whole(const std::string& path, std::string_view bytes) {
  try {
    OutputFile file("file", path);
    file.write(bytes);
    file.commit();
  } catch (const SystemError& error) {
    if (!only_in_place(path, error)) throw;
    write_in_place(path, bytes);
  }
}

void prepare(const std::string& path) {
  try {
    check_writable("file", path);
    const auto target = regular_target(path);
    if (!target.empty() && ::unlink(target.c_str()) != 0 && errno != ENOENT) throw_errno("file", path);
  } catch (const SystemError& error) {
    if (!only_in_place(path, error)) throw;
    write_in_place(path, {});
  }
}

}  // namespace

std::string write_file_whole(const std::string& path, std::string_view bytes) {
  return problem_of(path, [&] { write_whole(path, bytes); });
}

std::string prepare_file_whole(const std::string& path) {
  return problem_of(path, [&] { prepare(path); });
}

}  // namespace dtrun
