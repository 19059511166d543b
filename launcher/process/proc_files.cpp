#include "launcher/process/proc_files.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "launcher/process/directory_entries.hpp"
#include "rendezvous/base/unique_fd.hpp"

namespace dtrun::launcher {
namespace {

// "/proc/" + pid + rest, by hand: snprintf is not async-signal-safe.
class ProcPath {
 public:
  ProcPath& text(const char* part) noexcept {
    while (*part != '\0' && size_ + 1 < sizeof buffer_) buffer_[size_++] = *part++;
    buffer_[size_] = '\0';
    return *this;
  }
  ProcPath& number(pid_t value) noexcept {
    char digits[12];
    std::size_t n = 0;
    for (auto left = static_cast<unsigned>(value); n == 0 || left != 0; left /= 10) {
      digits[n++] = static_cast<char>('0' + left % 10);
    }
    while (n > 0 && size_ + 1 < sizeof buffer_) buffer_[size_++] = digits[--n];
    buffer_[size_] = '\0';
    return *this;
  }
  const char* c_str() const noexcept { return buffer_; }

 private:
  char buffer_[96] = {};
  std::size_t size_ = 0;
};

ssize_t read_some(int fd, char* buffer, std::size_t size) noexcept {
  ssize_t n = 0;
  do {
    n = ::read(fd, buffer, size);
  } while (n < 0 && errno == EINTR);
  return n;
}

UniqueFd open_read(const char* path, int flags = 0) noexcept {
  return UniqueFd(::open(path, O_RDONLY | O_CLOEXEC | flags));
}

// Entries of a /proc directory that are numbers.
template <class Visit>
void visit_numbers(const char* directory, Visit visit) noexcept {
  const UniqueFd fd = open_read(directory, O_DIRECTORY);
  if (!fd) return;
  visit_entries(fd.value(), [&](std::string_view name) {
    pid_t value = 0;
    for (const char c : name) {
      if (c < '0' || c > '9') return true;
      value = value * 10 + (c - '0');
    }
    return value == 0 || visit(value);
  });
}

// The children file of one thread. False when this kernel has none (no CONFIG_PROC_CHILDREN) or the thread is gone.
template <class Visit>
bool visit_thread_children(pid_t pid, pid_t thread, Visit visit) noexcept {
  ProcPath path;
  path.text("/proc/").number(pid).text("/task/").number(thread).text("/children");
  const UniqueFd fd = open_read(path.c_str());
  if (!fd) return false;
  char buffer[2048];
  pid_t value = 0;  // a number may be cut by the end of the buffer
  for (;;) {
    const ssize_t n = read_some(fd.value(), buffer, sizeof buffer);
    if (n <= 0) break;
    for (ssize_t i = 0; i < n; ++i) {
      if (buffer[i] >= '0' && buffer[i] <= '9') {
        value = value * 10 + (buffer[i] - '0');
      } else if (value > 0) {
        if (!visit(value)) return true;
        value = 0;
      }
    }
  }
  if (value > 0) visit(value);
  return true;
}

}  // namespace

bool read_stat(pid_t pid, ProcStat& stat) noexcept {
  ProcPath path;
  path.text("/proc/").number(pid).text("/stat");
  const UniqueFd fd = open_read(path.c_str());
  if (!fd) return false;
  char buffer[512];
  const ssize_t n = read_some(fd.value(), buffer, sizeof buffer);
  // The name in brackets may contain anything, so look for the last bracket: ") S 123 ...".
  ssize_t at = n - 1;
  while (at >= 0 && buffer[at] != ')') --at;
  if (at < 0 || at + 4 >= n) return false;
  stat.state = buffer[at + 2];
  unsigned long long number = 0;
  constexpr int kParent = 4, kStart = 22;  // fields of proc(5), separated by spaces; ')' ends the second
  int field = kParent;
  for (ssize_t i = at + 4; i < n && field <= kStart; ++i) {
    if (buffer[i] >= '0' && buffer[i] <= '9') {
      number = number * 10 + static_cast<unsigned long long>(buffer[i] - '0');
      continue;
    }
    if (buffer[i] != ' ') continue;  // the sign of a group of no terminal
    if (field == kParent) stat.parent = static_cast<pid_t>(number);
    if (field == kStart) stat.start = number;
    number = 0;
    ++field;
  }
  return true;
}

void visit_children(pid_t pid, VisitChild visit, void* context) noexcept {
  ProcPath tasks;
  tasks.text("/proc/").number(pid).text("/task");
  bool supported = false;
  bool go_on = true;
  visit_numbers(tasks.c_str(), [&](pid_t thread) {
    supported |= visit_thread_children(pid, thread, [&](pid_t child) { return go_on = visit(context, child); });
    return go_on;
  });
  if (supported) return;
  visit_numbers("/proc", [&](pid_t candidate) {
    ProcStat stat;
    return !read_stat(candidate, stat) || stat.parent != pid || visit(context, candidate);
  });
}

void visit_processes(VisitChild visit, void* context) noexcept {
  visit_numbers("/proc", [&](pid_t pid) { return visit(context, pid); });
}

bool proc_is_ours() noexcept {
  char text[16] = {};
  const auto size = ::readlink("/proc/self", text, sizeof text - 1);
  if (size <= 0) return false;
  pid_t number = 0;
  for (ssize_t i = 0; i < size; ++i) number = number * 10 + (text[i] - '0');
  return number == ::getpid();
}

}  // namespace dtrun::launcher
