// probe_worker COMMAND...: does in order what the commands say; the worker of scenario tests. Exits 0 at the end of the
// list.
//   exit=N  die=SEGV|KILL|...  ignore=TERM|...  sleep=SECONDS  forever
//   print=TEXT  error=TEXT  raw=TEXT (no newline)  lines=N (both streams)  bytes=N (one line of N bytes on stdout)
//   flood=BYTES (lines of 32 bytes on stdout, fast)  mixed=BYTES (of mixed_output.hpp, on both streams, in pieces)
//   env=NAME  env (all)  cwd  fds  signals (masks of /proc/self/status)  pid  stdin (copies it to stdout)
//   child  setsid-child  daemon: a process that sleeps ten minutes (in our group; in its own session; double-forked)
//   on=SIG:N  exits N at that signal   show=SIG  prints "rank R got SIG" and goes on   touch=FILE  remove=FILE
//   wait-for=FILE   beat=DIRECTORY  from here on, beside the rest: the time, every 20 ms, into a file named after the
//   round: MASTER_PORT.restarts.GROUP_RANK.RANK.WORLD_SIZE.pid
//   snapshot=TEXT  writes it into the memory of DTRUN_SNAPSHOT_FD   snapshot  prints what is there
//   progress=N  tells dtrun that N steps are finished   allocate=MIB  uses that much memory
//   become-root  for a program that is set-user-ID root: nobody else can signal it then
//   rank=R  attempt=N  not-attempt=N: the rest is only done by that rank / in that attempt; others go on after the word
//   "end" close-output  closes 1 and 2
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <string>
#include <thread>

#include "tests/scenario/mixed_output.hpp"

extern char** environ;

namespace {

int exit_code_at_signal[65];

int signal_number(const std::string& name) {
  for (int signal = 1; signal < 32; ++signal) {
    const char* known = ::sigabbrev_np(signal);
    if (known != nullptr && name == known) return signal;
  }
  std::fprintf(stderr, "probe_worker: unknown signal %s\n", name.c_str());
  std::exit(99);
}

void leave_at_signal(int signal) { ::_exit(exit_code_at_signal[signal]); }

void show_signal(int signal) {
  char line[96];
  const char* rank = std::getenv("RANK");
  const int n =
      std::snprintf(line, sizeof line, "rank %s got %s\n", rank != nullptr ? rank : "?", ::sigabbrev_np(signal));
  if (::write(1, line, static_cast<std::size_t>(n)) < 0) ::_exit(98);
}

void sleep_long() {
  for (int i = 0; i < 600; ++i) ::sleep(1);
  ::_exit(0);
}

void start_child(const std::string& kind) {
  if (::fork() != 0) return;
  if (kind != "child") ::setsid();
  if (kind == "daemon" && ::fork() != 0) ::_exit(0);
  sleep_long();
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

void write_all(int fd, const char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t n = ::write(fd, data, size);
    if (n < 0) ::_exit(97);
    data += n;
    size -= static_cast<std::size_t>(n);
  }
}

// Only who runs can write: the file shows from when to when this process did.
void beat(const std::string& directory) {
  auto path = directory + "/";
  for (const char* name : {"MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "GROUP_RANK", "RANK", "WORLD_SIZE"})
    path += variable(name) + ".";
  FILE* file = std::fopen((path + std::to_string(::getpid())).c_str(), "a");
  if (file == nullptr) std::exit(93);
  std::thread([file] {
    for (;; ::usleep(20'000)) {
      timespec now{};
      ::clock_gettime(CLOCK_MONOTONIC, &now);
      std::fprintf(file, "%ld.%09ld\n", now.tv_sec, now.tv_nsec);
      std::fflush(file);
    }
  }).detach();
}

void flood(std::size_t bytes) {
  std::string block;
  while (block.size() < 64 * 1024) block += "a line of thirty-two characters\n";
  for (std::size_t done = 0; done < bytes; done += block.size())
    write_all(1, block.data(), std::min(block.size(), bytes - done));
}

void write_mixed(std::size_t bytes) {
  const auto rank = static_cast<std::uint64_t>(std::atoi(variable("RANK").c_str()));
  const std::string texts[] = {dtrun::tests::mixed_output(2 * rank, bytes),
                               dtrun::tests::mixed_output(2 * rank + 1, bytes)};
  constexpr std::size_t kPiece = 5000;
  for (std::size_t at = 0; at < bytes + kPiece * 50; at += kPiece) {
    for (int stream = 0; stream < 2; ++stream) {
      if (at < texts[stream].size())
        write_all(stream + 1, texts[stream].data() + at, std::min(kPiece, texts[stream].size() - at));
    }
  }
}

void allocate(std::size_t mebibytes) {
  const auto bytes = mebibytes << 20;
  auto* memory = static_cast<volatile char*>(std::malloc(bytes));
  for (std::size_t at = 0; memory != nullptr && at < bytes; at += 4096) memory[at] = 1;
}

void tell_progress(const std::string& steps) {
  const auto text = std::string(20 - steps.size(), ' ') + steps + "\n";
  const int fd = ::open(variable("DTRUN_PROGRESS_FILE").c_str(), O_WRONLY | O_CREAT, 0644);
  if (fd < 0 || ::pwrite(fd, text.data(), text.size(), 0) < 0) std::exit(95);
  ::close(fd);
}

int snapshot_descriptor() {
  const auto number = variable("DTRUN_SNAPSHOT_FD");
  return number.empty() ? -1 : std::atoi(number.c_str());
}

void fill_snapshot(const std::string& text) {
  if (::pwrite(snapshot_descriptor(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) std::exit(92);
}

void print_snapshot() {
  char text[256];
  const ssize_t size = ::pread(snapshot_descriptor(), text, sizeof text, 0);
  if (size < 0) std::exit(92);
  std::printf("snapshot <%.*s>\n", static_cast<int>(size), text);
}

void print_signals() {
  FILE* status = std::fopen("/proc/self/status", "r");
  char line[256];
  while (status != nullptr && std::fgets(line, sizeof line, status) != nullptr) {
    if (std::strncmp(line, "SigBlk", 6) == 0 || std::strncmp(line, "SigIgn", 6) == 0) std::fputs(line, stdout);
  }
  if (status != nullptr) std::fclose(status);
}

void print_descriptors() {
  DIR* directory = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(directory)) {
    const int fd = std::atoi(entry->d_name);
    if (entry->d_name[0] != '.' && fd != ::dirfd(directory)) std::printf("fd %d\n", fd);
  }
  ::closedir(directory);
}

void do_simple(const std::string& name) {
  if (name == "forever")
    sleep_long();
  else if (name == "child" || name == "setsid-child" || name == "daemon")
    start_child(name);
  else if (name == "pid")
    std::printf("pid %d\n", ::getpid());
  else if (name == "fds")
    print_descriptors();
  else if (name == "snapshot")
    print_snapshot();
  else if (name == "signals")
    print_signals();
  else if (name == "cwd")
    std::printf("cwd %s\n", std::filesystem::current_path().c_str());
  else if (name == "become-root") {
    if (::setresuid(0, 0, 0) != 0) std::exit(94);
  } else if (name == "close-output")
    ::close(1), ::close(2);
  else if (name == "env") {
    for (char** entry = environ; *entry != nullptr; ++entry) std::printf("%s\n", *entry);
  } else if (name == "stdin") {
    for (int c = std::getchar(); c != EOF; c = std::getchar()) std::putchar(c);
  } else if (name != "end") {
    std::fprintf(stderr, "probe_worker: unknown command %s\n", name.c_str());
    std::exit(99);
  }
}

void do_with_value(const std::string& name, const std::string& value) {
  if (name == "exit")
    std::exit(std::atoi(value.c_str()));
  else if (name == "die")
    std::signal(signal_number(value), SIG_DFL), ::raise(signal_number(value)), sleep_long();
  else if (name == "ignore")
    std::signal(signal_number(value), SIG_IGN);
  else if (name == "sleep")
    ::usleep(static_cast<useconds_t>(std::atof(value.c_str()) * 1e6));
  else if (name == "print")
    std::printf("%s\n", value.c_str());
  else if (name == "error")
    std::fprintf(stderr, "%s\n", value.c_str());
  else if (name == "raw")
    std::fputs(value.c_str(), stdout);
  else if (name == "env")
    std::printf("%s=%s\n", value.c_str(), std::getenv(value.c_str()) ? variable(value.c_str()).c_str() : "(unset)");
  else if (name == "bytes")
    std::printf("%s\n", std::string(static_cast<std::size_t>(std::atol(value.c_str())), 'x').c_str());
  else if (name == "progress")
    tell_progress(value);
  else if (name == "snapshot")
    fill_snapshot(value);
  else if (name == "beat")
    beat(value);
  else if (name == "allocate")
    allocate(static_cast<std::size_t>(std::atol(value.c_str())));
  else if (name == "touch")
    ::close(::open(value.c_str(), O_CREAT | O_WRONLY, 0644));
  else if (name == "remove")
    ::unlink(value.c_str());
  else if (name == "flood")
    flood(std::stoul(value));
  else if (name == "mixed")
    write_mixed(std::stoul(value));
  else if (name == "wait-for") {
    for (struct stat info; ::stat(value.c_str(), &info) != 0;) ::usleep(2000);
  } else if (name == "lines") {
    const auto rank = variable("RANK");
    for (int i = 0; i < std::atoi(value.c_str()); ++i) {
      std::printf("out %s %d of a line that is long enough to be cut\n", rank.c_str(), i);
      std::fprintf(stderr, "err %s %d of a line that is long enough to be cut\n", rank.c_str(), i);
    }
  } else if (name == "on") {
    const auto colon = value.find(':');
    const int signal = signal_number(value.substr(0, colon));
    exit_code_at_signal[signal] = std::atoi(value.c_str() + colon + 1);
    std::signal(signal, leave_at_signal);
  } else if (name == "show") {
    std::signal(signal_number(value), show_signal);
  } else {
    std::fprintf(stderr, "probe_worker: unknown command %s\n", name.c_str());
    std::exit(99);
  }
}

// True when `name` is a condition; `met` says whether the following commands are for us.
bool is_condition(const std::string& name, const std::string& value, bool& met) {
  if (name == "rank")
    met = variable("RANK") == value;
  else if (name == "attempt")
    met = variable("TORCHELASTIC_RESTART_COUNT") == value;
  else if (name == "not-attempt")
    met = variable("TORCHELASTIC_RESTART_COUNT") != value;
  else
    return false;
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto equal = word.find('=');
    const auto name = word.substr(0, equal);
    const auto value = equal == std::string::npos ? "" : word.substr(equal + 1);
    bool met = true;
    if (equal != std::string::npos && is_condition(name, value, met)) {
      while (!met && i + 1 < argc && std::string(argv[i + 1]) != "end") ++i;
      continue;
    }
    equal == std::string::npos ? do_simple(name) : do_with_value(name, value);
    std::fflush(stdout);
  }
  return 0;
}
