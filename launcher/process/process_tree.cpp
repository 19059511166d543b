#include "launcher/process/process_tree.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "launcher/process/child_table.hpp"
#include "launcher/process/proc_files.hpp"
#include "rendezvous/base/error.hpp"

namespace dtrun::launcher {
namespace {

constexpr int kMaxDepth = 64;  // of the walk; what lies deeper comes nearer when its parents die

int open_pidfd(pid_t pid) noexcept { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }
bool send_by_pidfd(int pidfd, int signal) noexcept {
  return ::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0) == 0;
}
bool contains(std::span<const pid_t> list, pid_t pid) noexcept {
  return std::find(list.begin(), list.end(), pid) != list.end();
}

// One level of the walk. `pidfd` of the parent is -1 for our own children: only we reap them, so their numbers stay
// theirs.
struct Walk {
  pid_t parent = 0;
  int parent_pidfd = -1;
  int depth = 0;
  int signal = 0;
  std::span<const pid_t> spare;
  int* count = nullptr;
};

bool visit_descendant(void* context, pid_t pid) noexcept {
  const auto& walk = *static_cast<const Walk*>(context);
  if (contains(walk.spare, pid)) return true;
  const UniqueFd pidfd(open_pidfd(pid));
  if (walk.depth == 0) {
    *walk.count += ::kill(pid, walk.signal) == 0 ? 1 : 0;
  } else {
    // Ours only if, with the pidfd open, it still names our known parent, and that parent's number is still that
    // parent.
    ProcStat stat;
    if (!pidfd || !read_stat(pid, stat) || stat.parent != walk.parent) return true;
    if (walk.parent_pidfd >= 0 && !send_by_pidfd(walk.parent_pidfd, 0)) return true;
    *walk.count += send_by_pidfd(pidfd.value(), walk.signal) ? 1 : 0;
  }
  if (walk.depth + 1 < kMaxDepth && pidfd) {
    Walk below{pid, pidfd.value(), walk.depth + 1, walk.signal, {}, walk.count};
    visit_children(pid, visit_descendant, &below);
  }
  return true;
}

struct Collect {
  std::span<const pid_t> spare;
  std::vector<pid_t> pids;
};

std::vector<pid_t> own_children(std::span<const pid_t> spare, std::size_t limit) {
  Collect collect{spare, {}};
  collect.pids.reserve(limit);
  const auto add = [](void* context, pid_t pid) {
    auto& to = *static_cast<Collect*>(context);
    if (!contains(to.spare, pid)) to.pids.push_back(pid);
    return to.pids.size() < to.pids.capacity();
  };
  visit_children(::getpid(), add, &collect);
  return collect.pids;
}

// Until one of the children ends, or the time is over.
void wait_for_a_child(std::span<const pid_t> spare, int milliseconds) {
  std::vector<UniqueFd> owners;
  std::vector<pollfd> fds;
  for (const pid_t pid : own_children(spare, 64)) {
    owners.emplace_back(open_pidfd(pid));
    if (owners.back()) fds.push_back({owners.back().value(), POLLIN, 0});
  }
  ::poll(fds.data(), fds.size(), fds.empty() ? 1 : milliseconds);
}

}  // namespace

void become_subreaper() {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) throw_errno("launcher", "cannot become a child subreaper");
}

int reap_ended_children() noexcept {
  for (int count = 0;; ++count) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG) != 0 || info.si_pid == 0) return count;
    deliver_status(info.si_pid, ExitStatus::from_siginfo(info));
  }
}

bool has_children(std::span<const pid_t> spare) noexcept {
  siginfo_t info{};
  if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0) return errno != ECHILD;
  if (spare.empty()) return true;
  Collect collect{spare, {}};
  bool found = false;
  struct Context {
    std::span<const pid_t> spare;
    bool* found;
  } context{spare, &found};
  visit_children(
      ::getpid(),
      [](void* argument, pid_t pid) {
        const auto& at = *static_cast<Context*>(argument);
        *at.found = !contains(at.spare, pid);
        return !*at.found;
      },
      &context);
  return found;
}

int signal_descendants(int signal, std::span<const pid_t> spare) noexcept {
  if (!proc_is_ours()) return 0;  // the numbers in there are somebody else's
  int count = 0;
  Walk walk{::getpid(), -1, 0, signal, spare, &count};
  visit_children(walk.parent, visit_descendant, &walk);
  return count;
}

std::vector<Survivor> kill_descendants(std::chrono::milliseconds budget, std::span<const pid_t> spare) {
  const auto deadline = Deadline::after(budget);
  for (;;) {
    reap_ended_children();
    if (!has_children(spare)) return {};
    if (deadline.passed()) break;
    signal_descendants(SIGKILL, spare);
    wait_for_a_child(spare, std::min(deadline.poll_milliseconds(), 100));
  }
  std::vector<Survivor> left;
  for (const pid_t pid : own_children(spare, 64)) left.push_back(describe_process(pid));
  return left;
}

Survivor describe_process(pid_t pid) {
  Survivor result{pid, '?', {}};
  if (ProcStat stat; read_stat(pid, stat)) result.state = stat.state;
  const auto path = "/proc/" + std::to_string(pid) + "/wchan";
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char buffer[128];
  const ssize_t n = fd ? ::read(fd.value(), buffer, sizeof buffer) : 0;
  if (n > 0) result.wait_channel.assign(buffer, static_cast<std::size_t>(n));
  return result;
}

}  // namespace dtrun::launcher
