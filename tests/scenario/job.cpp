#include "tests/scenario/job.hpp"

#include <fcntl.h>
#include <pty.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <thread>

extern char** environ;

// ThreadSanitizer takes the clone of ChildProcess for a fork and would refuse new threads afterwards. Only read by it.
extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

namespace dtrun::tests {
namespace {

using namespace std::chrono_literals;

std::string new_token() {
  static int counter = 0;
  return "DTRUN_TEST_TOKEN=" + std::to_string(::getpid()) + "-" + std::to_string(++counter) + "-" +
         std::to_string(std::chrono::steady_clock::now().time_since_epoch().count());
}

std::vector<std::string> environment_of(const JobOptions& options, const std::string& token) {
  std::vector<std::string> result;
  const auto name_of = [](const std::string& entry) { return entry.substr(0, entry.find('=')); };
  for (char** entry = environ; *entry != nullptr; ++entry) {
    bool overridden = name_of(*entry) == "DTRUN_TEST_TOKEN";
    for (const auto& own : options.environment) overridden |= name_of(own) == name_of(*entry);
    if (!overridden) result.emplace_back(*entry);
  }
  for (const auto& own : options.environment) {
    if (own.find('=') != std::string::npos) result.push_back(own);
  }
  result.push_back(token);
  return result;
}

pid_t parent_of(pid_t pid) {
  const auto stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  const auto bracket = stat.rfind(')');
  return bracket == std::string::npos ? -1 : std::atoi(stat.c_str() + bracket + 4);
}

template <class Visit>
void visit_processes(Visit visit) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const auto name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") == std::string::npos) visit(static_cast<pid_t>(std::stol(name)));
  }
}

void redirect(const std::string& path, int target, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0600);
  if (fd < 0 || ::dup2(fd, target) < 0) ::_exit(96);
}

void take_host_name(const std::string& name) {
  if (::unshare(CLONE_NEWUTS) != 0 && ::unshare(CLONE_NEWUTS | CLONE_NEWUSER) != 0) ::_exit(kNoNamespace);
  if (::sethostname(name.data(), name.size()) != 0) ::_exit(kNoNamespace);
}

[[noreturn]] void become(const std::vector<std::string>& argv, const std::vector<std::string>& environment) {
  std::vector<char*> arguments, variables;
  for (const auto& text : argv) arguments.push_back(const_cast<char*>(text.c_str()));
  for (const auto& text : environment) variables.push_back(const_cast<char*>(text.c_str()));
  arguments.push_back(nullptr);
  variables.push_back(nullptr);
  ::execve(arguments[0], arguments.data(), variables.data());
  ::_exit(97);
}

}  // namespace

bool eventually(const std::function<bool()>& condition, std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  for (;;) {
    if (condition()) return true;
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(1ms);
  }
}

std::vector<std::string> last_match(const std::string& text, const std::string& pattern) {
  const std::regex form(pattern);
  std::vector<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), form), end; at != end; ++at) {
    found.clear();
    for (const auto& group : *at) found.push_back(group.str());
  }
  return found;
}

std::string last_capture(const std::string& text, const std::string& pattern) {
  const auto found = last_match(text, pattern);
  return found.size() > 1 ? found[1] : std::string();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> result;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) result.push_back(line);
  return result;
}

std::string join(const std::vector<std::string>& words) {
  std::string result;
  for (const auto& word : words) result += word + "\n";
  return result;
}

Job::Job(std::vector<std::string> argv, JobOptions options) : token_(new_token()) {
  const auto environment = environment_of(options, token_);
  const auto in = directory_.file("in"), out = directory_.file("out"), error = directory_.file("err");
  std::ofstream(in) << options.stdin_text;
  winsize size{50, 200, 0, 0};
  int started[2];
  if (::pipe2(started, O_CLOEXEC) != 0) throw std::runtime_error("pipe failed");
  pid_ = options.terminal ? ::forkpty(&terminal_, nullptr, nullptr, &size) : ::fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ == 0) {
    for (const auto& name : options.ignored_signals) std::signal(name == "SIGHUP" ? SIGHUP : SIGINT, SIG_IGN);
    if (!options.host_name.empty()) take_host_name(options.host_name);
    if (!options.terminal) {
      redirect(in, 0, O_RDONLY);
      if (options.stdout_fd >= 0) {
        ::dup2(options.stdout_fd, 1);
      } else {
        redirect(out, 1, O_WRONLY | O_CREAT | O_APPEND);
      }
      redirect(error, 2, O_WRONLY | O_CREAT | O_APPEND);
    }
    become(argv, environment);
  }
  // Wait for the exec: until then the child is a copy of this test, with its signal handlers.
  ::close(started[1]);
  char nothing = 0;
  while (::read(started[0], &nothing, 1) < 0 && errno == EINTR) {
  }
  ::close(started[0]);
  started_ = std::chrono::steady_clock::now();
  if (terminal_ >= 0) ::fcntl(terminal_, F_SETFL, O_NONBLOCK | ::fcntl(terminal_, F_GETFL));
}

Job::~Job() {
  for (int round = 0; round < 200 && !processes().empty(); ++round) {
    for (const pid_t pid : processes()) ::kill(pid, SIGKILL);
    if (!status_) wait(1ms);
    std::this_thread::sleep_for(1ms);
  }
  if (!status_) wait(2s);
  if (terminal_ >= 0) ::close(terminal_);
}

void Job::signal(int number) const {
  if (!status_) ::kill(pid_, number);
}

std::optional<launcher::ExitStatus> Job::wait(std::chrono::milliseconds limit) {
  eventually(
      [&] {
        int raw = 0;
        if (!status_ && ::waitpid(pid_, &raw, WNOHANG) == pid_) {
          ended_ = std::chrono::steady_clock::now();
          status_ = launcher::ExitStatus::from_wait_status(raw);
        }
        if (terminal_ >= 0) read_terminal();  // or it would block when the terminal is full
        return status_.has_value();
      },
      limit);
  return status_;
}

void Job::read_terminal() const {
  char buffer[4096];
  for (ssize_t n = 0; terminal_ >= 0 && (n = ::read(terminal_, buffer, sizeof buffer)) > 0;) {
    terminal_text_.append(buffer, static_cast<std::size_t>(n));
  }
}

std::string Job::out() const {
  read_terminal();
  return terminal_ >= 0 ? terminal_text_ : read_file(directory_.file("out"));
}

std::string Job::error() const { return read_file(directory_.file("err")); }

void Job::type(const std::string& text) {
  if (::write(terminal_, text.data(), text.size()) < 0) throw std::runtime_error("cannot type");
}

void Job::hang_up() {
  read_terminal();
  ::close(terminal_);
  terminal_ = -1;
}

std::vector<pid_t> Job::processes() const {
  std::vector<pid_t> result;
  visit_processes([&](pid_t pid) {
    const auto environment = read_file("/proc/" + std::to_string(pid) + "/environ");
    if (pid != ::getpid() && environment.find(token_ + '\0') != std::string::npos && state_of(pid) != 'Z' &&
        state_of(pid) != 'X') {
      result.push_back(pid);
    }
  });
  return result;
}

std::vector<pid_t> Job::processes_named(const std::string& text) const {
  std::vector<pid_t> result;
  for (const pid_t pid : processes()) {
    auto command = read_file("/proc/" + std::to_string(pid) + "/cmdline");
    for (char& c : command) c = c == '\0' ? ' ' : c;
    if (command.find(text) != std::string::npos) result.push_back(pid);
  }
  return result;
}

char Job::state_of(pid_t pid) {
  const auto stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  const auto bracket = stat.rfind(')');
  return bracket == std::string::npos || bracket + 2 >= stat.size() ? 'X' : stat[bracket + 2];
}

std::vector<pid_t> Job::children_of(pid_t parent) {
  std::vector<pid_t> result;
  visit_processes([&](pid_t pid) {
    if (parent_of(pid) == parent && state_of(pid) != 'Z') result.push_back(pid);
  });
  return result;
}

bool Job::all_gone(std::chrono::milliseconds limit) const {
  return eventually([&] { return processes().empty(); }, limit);
}

}  // namespace dtrun::tests
