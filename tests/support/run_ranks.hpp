// Runs a function as n ranks of one process group: as threads, or as processes (fork). The function throws to report a
// failure; the answer holds one text per rank, empty when all went well. Catch assertions belong to the calling thread,
// outside. Without an account in the options each rank has its own: group.account().
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "rendezvous/base/unique_fd.hpp"
#include "tests/support/directory_store.hpp"
#include "tests/support/files.hpp"
#include "tests/support/own_threads.hpp"
#include "worker_runtime/comm/process_group.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

namespace dtrun::test {

using RankFunction = std::function<void(runtime::ProcessGroup&)>;

inline void expect(bool condition, std::string_view what) {
  if (!condition) throw std::runtime_error("expected " + std::string(what));
}

inline std::string run_rank(const std::filesystem::path& directory, int rank, int n, const RankFunction& function,
                            const runtime::GroupOptions& options, const std::string& backend) {
  try {
    const auto store = std::make_shared<test::DirectoryStore>(directory);
    runtime::MemoryAccount own;
    auto accounted = options;
    if (accounted.account == nullptr) accounted.account = &own;
    const auto group = runtime::create_process_group(backend, store, rank, n, accounted);
    function(*group);
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

inline std::vector<std::string> run_ranks(int n, const RankFunction& function,
                                          const runtime::GroupOptions& options = {},
                                          const std::string& backend = "shm") {
  const tests::TempDirectory directory;
  std::vector<std::string> results(static_cast<std::size_t>(n));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      results[static_cast<std::size_t>(rank)] = run_rank(directory.path(), rank, n, function, options, backend);
    });
  }
  for (auto& thread : threads) thread.join();
  return results;
}

// What the sanitizer looks for when main returns, which a rank that is a process never does. Reported on stderr. Not
// for the child of several threads: the sanitizer knows all of them, and seeks those that fork left out for half a
// minute.
inline bool has_leaks() {
#if defined(__SANITIZE_ADDRESS__)
  return __lsan_do_recoverable_leak_check() != 0;
#else
  return false;
#endif
}

// Ranks as processes. Kills what is left when it goes out of scope.
class RankProcesses {
 public:
  RankProcesses(int n, const RankFunction& function, const runtime::GroupOptions& options = {},
                const std::string& backend = "shm") {
    const bool alone = threads_of_this_process() == 1;
    for (int rank = 0; rank < n; ++rank) {
      std::array<int, 2> ends{};
      if (::pipe(ends.data()) != 0) throw std::runtime_error("pipe failed");
      const pid_t pid = ::fork();
      if (pid < 0) throw std::runtime_error("fork failed");
      if (pid == 0) {
        ::close(ends[0]);
        std::string result = run_rank(directory_.path(), rank, n, function, options, backend);
        if (alone && has_leaks()) result += "(leaks)";
        const ssize_t written = ::write(ends[1], result.data(), result.size());
        ::_exit(written == static_cast<ssize_t>(result.size()) ? 0 : 1);
      }
      ::close(ends[1]);
      pids_.push_back(pid);
      pipes_.emplace_back(ends[0]);
    }
  }
  ~RankProcesses() {
    for (std::size_t i = 0; i < pids_.size(); ++i) end(i);
  }

  pid_t pid(int rank) const { return pids_[static_cast<std::size_t>(rank)]; }
  void kill(int rank, int signal) const { ::kill(pid(rank), signal); }
  const std::filesystem::path& directory() const { return directory_.path(); }

  // What the rank reported until it ended; "(running)" appended when it did not end in time, "(exit code 66)" when it
  // ended as a sanitizer or an assertion ends it. A killed rank reports "(killed)".
  std::string wait(int rank, std::chrono::milliseconds limit = std::chrono::seconds(30)) {
    const auto index = static_cast<std::size_t>(rank);
    const Deadline deadline = Deadline::after(limit);
    std::string text;
    std::array<char, 4096> buffer{};
    for (;;) {
      pollfd query{pipes_[index].value(), POLLIN, 0};
      if (::poll(&query, 1, deadline.poll_milliseconds()) == 0) return text + "(running)";
      const auto length = ::read(pipes_[index].value(), buffer.data(), buffer.size());
      if (length <= 0) break;
      text.append(buffer.data(), static_cast<std::size_t>(length));
    }
    int status = 0;
    ::waitpid(pids_[index], &status, 0);
    pids_[index] = -1;
    if (WIFSIGNALED(status)) return "(killed)";
    if (const int code = WEXITSTATUS(status); code != 0) text += "(exit code " + std::to_string(code) + ")";
    return text;
  }

 private:
  void end(std::size_t index) {
    if (pids_[index] <= 0) return;
    ::kill(pids_[index], SIGKILL);
    ::waitpid(pids_[index], nullptr, 0);
  }
  tests::TempDirectory directory_;
  std::vector<pid_t> pids_;
  std::vector<UniqueFd> pipes_;
};

}  // namespace dtrun::test
