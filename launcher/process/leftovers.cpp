#include "launcher/process/leftovers.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <string_view>

#include "launcher/process/proc_files.hpp"
#include "rendezvous/base/clock.hpp"
#include "rendezvous/base/unique_fd.hpp"
#include "rendezvous/contract/environment.hpp"

namespace dtrun::launcher {
namespace {

constexpr auto kKillWait = std::chrono::seconds(1);

std::string path_of(pid_t pid, const char* file) { return "/proc/" + std::to_string(pid) + "/" + file; }

std::string read_all(const std::string& path) {
  std::string text;
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char buffer[4096];
  for (ssize_t n = 0; fd && (n = ::read(fd.value(), buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(n));
  return text;
}

// Of a list of NAME=value, each ended by a NUL.
std::string_view value_in(std::string_view environment, std::string_view name) {
  while (!environment.empty()) {
    const auto entry = environment.substr(0, environment.find('\0'));
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=')
      return entry.substr(name.size() + 1);
    environment.remove_prefix(std::min(entry.size() + 1, environment.size()));
  }
  return {};
}

// Numbers and start times mean the same for it as for us.
bool in_our_namespaces(pid_t pid) {
  for (const char* name : {"ns/pid", "ns/time"}) {
    struct stat own {
    }, other{};
    const auto own_path = std::string("/proc/self/") + name;
    if (::stat(own_path.c_str(), &own) != 0) continue;  // a kernel without time namespaces
    if (::stat(path_of(pid, name).c_str(), &other) != 0 || other.st_ino != own.st_ino) return false;
  }
  return true;
}

std::vector<pid_t> ancestors_and_self() {
  std::vector<pid_t> result;
  for (pid_t pid = ::getpid(); pid > 0;) {
    result.push_back(pid);
    ProcStat stat;
    pid = read_stat(pid, stat) ? stat.parent : 0;
  }
  return result;
}

std::chrono::seconds age_of(unsigned long long start) {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  const auto started = start / static_cast<unsigned long long>(::sysconf(_SC_CLK_TCK));
  return std::chrono::seconds(now.tv_sec) - std::chrono::seconds(started);
}

std::string command_of(pid_t pid) {
  auto text = read_all(path_of(pid, "cmdline"));
  while (!text.empty() && text.back() == '\0') text.pop_back();
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text;
}

struct Search {
  LeftoverSearch result;
  std::vector<pid_t> spare = ancestors_and_self();
};

bool look_at(void* context, pid_t pid) noexcept {
  auto& search = *static_cast<Search*>(context);
  if (std::find(search.spare.begin(), search.spare.end(), pid) != search.spare.end()) return true;
  const auto environment = read_all(path_of(pid, "environ"));
  const auto job = JobMark::parse(value_in(environment, environment::kJob));
  ProcStat stat;
  if (!job || !read_stat(pid, stat) || stat.state == 'Z' || stat.state == 'X') return true;
  if (!in_our_namespaces(pid)) {
    ++search.result.in_other_namespaces;
    return true;
  }
  if (job->alive()) return true;
  search.result.found.push_back(
      {pid, *job, stat.start, stat.state, std::string(value_in(environment, environment::kRunId)),
       std::string(value_in(environment, environment::kRank)), command_of(pid), age_of(stat.start)});
  return true;
}

// A pidfd of exactly that process, or nothing.
UniqueFd hold(const Leftover& leftover) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, leftover.pid, 0)));
  ProcStat stat;
  if (!fd || !read_stat(leftover.pid, stat) || stat.start != leftover.start) return {};
  return fd;
}

void wait_for_all(const std::vector<std::pair<Leftover, UniqueFd>>& held, Deadline deadline) {
  for (const auto& [leftover, fd] : held) {
    pollfd ready{fd.value(), POLLIN, 0};
    while (::poll(&ready, 1, deadline.poll_milliseconds()) < 0 && errno == EINTR) {
    }
  }
}

}  // namespace

LeftoverSearch find_leftovers() {
  Search search;
  visit_processes(look_at, &search);
  std::sort(search.result.found.begin(), search.result.found.end(),
            [](const Leftover& a, const Leftover& b) { return a.pid < b.pid; });
  return std::move(search.result);
}

std::vector<Leftover> end_leftovers(const std::vector<Leftover>& leftovers, std::chrono::milliseconds grace) {
  std::vector<std::pair<Leftover, UniqueFd>> held;
  for (const auto& leftover : leftovers) {
    if (auto fd = hold(leftover)) held.emplace_back(leftover, std::move(fd));
  }
  const auto send = [&](int signal) {
    for (const auto& [leftover, fd] : held) ::syscall(SYS_pidfd_send_signal, fd.value(), signal, nullptr, 0);
  };
  send(SIGTERM);
  send(SIGCONT);
  wait_for_all(held, Deadline::after(grace));
  send(SIGKILL);
  wait_for_all(held, Deadline::after(kKillWait));
  std::vector<Leftover> left;
  for (const auto& [leftover, fd] : held) {
    pollfd ready{fd.value(), POLLIN, 0};
    if (::poll(&ready, 1, 0) != 1) left.push_back(leftover);
  }
  return left;
}

}  // namespace dtrun::launcher
