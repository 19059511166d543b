#include "launcher/logs/output_hub.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pty.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <map>
#include <stdexcept>
#include <thread>

#include "launcher/process/child_process.hpp"
#include "tests/catch.hpp"
#include "tests/scenario/job.hpp"

using namespace dtrun;
using namespace dtrun::launcher;
using namespace std::chrono_literals;

namespace {

const std::string kProbe = DTRUN_PROBE_WORKER;

// A hub whose console is two files.
struct FileConsole {
  tests::TempDirectory directory;
  UniqueFd out{::open(directory.file("out").c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600)};
  UniqueFd error{::open(directory.file("err").c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600)};
  OutputHub hub{OutputHubOptions{.stdout_fd = out.value(), .stderr_fd = error.value()}};

  std::string out_text() const { return tests::read_file(directory.file("out")); }
  std::string error_text() const { return tests::read_file(directory.file("err")); }
};

Deadline soon(std::chrono::milliseconds limit = 10s) { return Deadline::after(limit); }

void write_all(const UniqueFd& fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd.value(), text.data(), text.size());
    if (n <= 0) throw std::runtime_error("cannot write");  // no assertion: other threads call this too
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

// process() as the agent calls it, until the condition holds.
bool run_until(OutputHub& hub, const std::function<bool()>& condition, std::chrono::milliseconds limit = 10s) {
  const auto deadline = Deadline::after(limit);
  while (!condition()) {
    if (deadline.passed()) return false;
    pollfd ready{hub.event_fd(), POLLIN, 0};
    ::poll(&ready, 1, 10);
    hub.process();
  }
  return true;
}

ChildProcess start(OutputHub& hub, const RankOutputPlan& plan, std::vector<std::string> commands, int rank,
                   OutputHub::CaptureId* id = nullptr) {
  auto ends = hub.attach(plan);
  ProcessSpec spec;
  spec.argv = {kProbe};
  spec.argv.insert(spec.argv.end(), commands.begin(), commands.end());
  spec.environment = {"RANK=" + std::to_string(rank)};
  spec.stdout_fd = ends.stdout_fd.value();
  spec.stderr_fd = ends.stderr_fd.value();
  if (id != nullptr) *id = ends.id;
  return ChildProcess::spawn(spec);
}

std::size_t open_descriptors() {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator()));
}

struct PipeSignalIgnored {
  PipeSignalIgnored() { std::signal(SIGPIPE, SIG_IGN); }
} pipe_signal_ignored;

}  // namespace

TEST_CASE("lines get their prefix, files get the bytes, each stream its own console") {
  FileConsole console;
  const std::string bytes("one\r\ntwo\0x\n\nlast", 16);
  auto ends = console.hub.attach({.stdout_file = console.directory.file("o.log"),
                                  .stderr_file = console.directory.file("e.log"),
                                  .prefix = "[rank3] "});
  write_all(ends.stdout_fd, bytes);
  write_all(ends.stderr_fd, "problem\nworse");
  const auto id = ends.id;
  ends = {};
  CHECK(console.hub.drain(soon()));
  CHECK(console.hub.ended(id));
  CHECK(console.out_text() == std::string("[rank3] one\n[rank3] two\0x\n[rank3] \n[rank3] last\n", 48));
  CHECK(console.error_text() == "[rank3] problem\n[rank3] worse\n");
  CHECK(tests::read_file(console.directory.file("o.log")) == bytes);
  CHECK(tests::read_file(console.directory.file("e.log")) == "problem\nworse");
  CHECK(console.hub.stderr_tail(id) == std::vector<std::string>{"problem", "worse"});
  console.hub.forget(id);
  CHECK(console.hub.stderr_tail(id).empty());
}

TEST_CASE("the plan decides what is shown, stderr is remembered in any case") {
  FileConsole console;
  auto ends = console.hub.attach({.console_stdout = false, .console_stderr = false});
  write_all(ends.stdout_fd, "hidden\n");
  write_all(ends.stderr_fd, "reason");
  CHECK(run_until(console.hub, [&] { return !console.hub.stderr_tail(ends.id).empty(); }));
  CHECK(console.hub.stderr_tail(ends.id) == std::vector<std::string>{"reason"});
  const auto id = ends.id;
  ends = {};
  CHECK(console.hub.drain(soon()));
  CHECK(console.out_text().empty());
  CHECK(console.error_text().empty());
  CHECK(console.hub.stderr_tail(id) == std::vector<std::string>{"reason"});
}

TEST_CASE("without whole_lines bytes pass as they come") {
  FileConsole console;
  auto ends = console.hub.attach({.whole_lines = false});
  write_all(ends.stdout_fd, "password: ");
  CHECK(run_until(console.hub, [&] { return console.out_text() == "password: "; }));
  write_all(ends.stdout_fd, "10%\r20%\r");
  CHECK(run_until(console.hub, [&] { return console.out_text() == "password: 10%\r20%\r"; }));
}

TEST_CASE("lines with a filter text go to the shared filtered file") {
  FileConsole console;
  const auto path = console.directory.file("filtered");
  std::vector<OutputHub::WorkerEnds> ends;
  for (int rank = 0; rank < 2; ++rank) {
    ends.push_back(console.hub.attach({.console_stdout = false,
                                       .prefix = fmt::format("[rank{}] ", rank),
                                       .stdout_filters = {"apple", "pear"},
                                       .filtered_stdout_file = path}));
    write_all(ends.back().stdout_fd, "an apple\na plum\npears\n");
  }
  ends.clear();
  CHECK(console.hub.drain(soon()));
  const auto text = tests::read_file(path);
  CHECK(tests::lines_of(text).size() == 4);
  CHECK_THAT(text, Catch::Contains("[rank0] an apple\n[rank0] pears\n") && Catch::Contains("[rank1] an apple\n"));
}

TEST_CASE("many ranks at once never mix their lines, even on one pipe for both streams") {
  constexpr int kRanks = 4, kLines = 5000;
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  std::string text;
  std::thread reader([&] {
    char buffer[4096];
    for (ssize_t n = 0; (n = ::read(read_end.value(), buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<std::size_t>(n));
  });
  {
    OutputHub hub({.stdout_fd = write_end.value(), .stderr_fd = write_end.value()});
    std::vector<ChildProcess> workers;
    for (int rank = 0; rank < kRanks; ++rank) {
      workers.push_back(
          start(hub, {.prefix = fmt::format("[rank{}] ", rank)}, {fmt::format("lines={}", kLines)}, rank));
    }
    CHECK(hub.drain(soon(30s)));
    CHECK(hub.statistics().dropped_console_lines == 0);
  }
  write_end.reset();
  reader.join();
  std::map<std::string, int> next;
  int wrong = 0;
  for (const auto& line : tests::lines_of(text)) {
    int prefix = 0, rank = 0, number = 0;
    char stream[4] = {};
    const int fields = std::sscanf(line.c_str(), "[rank%d] %3s %d %d", &prefix, stream, &rank, &number);
    const bool right = fields == 4 && prefix == rank && line.ends_with(" of a line that is long enough to be cut") &&
                       next[std::string(stream) + std::to_string(rank)]++ == number;
    wrong += right ? 0 : 1;
  }
  CHECK(wrong == 0);
  REQUIRE(next.size() == 2 * kRanks);
  for (const auto& [stream, count] : next) CHECK(count == kLines);
}

TEST_CASE("a line of many megabytes arrives") {
  FileConsole console;
  OutputHub::CaptureId id = 0;
  auto worker = start(console.hub, {.stdout_file = console.directory.file("o.log"), .prefix = "> "},
                      {"bytes=5000000", "print=end"}, 0, &id);
  CHECK(console.hub.drain(soon()));
  CHECK(tests::read_file(console.directory.file("o.log")).size() == 5'000'005);
  const auto lines = tests::lines_of(console.out_text());
  REQUIRE(lines.size() == 6);  // five pieces: 1 MiB each at most
  CHECK(lines.back() == "> end");
  CHECK(console.out_text().size() == 5'000'000 + 3 + 6 * 3);
}

TEST_CASE(
    "a console that nobody reads stops no worker whose output is in a file, the loss is counted and told on stderr") {
  int ends[2];
  const bool socket = GENERATE(false, true);
  REQUIRE((socket ? ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) : ::pipe2(ends, O_CLOEXEC)) == 0);
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  FileConsole files;
  auto hub =
      std::make_unique<OutputHub>(OutputHubOptions{.stdout_fd = write_end.value(), .stderr_fd = files.error.value()});
  constexpr int kLines = 400'000;
  auto worker = start(*hub, {.console_stderr = false, .stdout_file = files.directory.file("o.log"), .prefix = "> "},
                      {fmt::format("lines={}", kLines)}, 0);
  REQUIRE(run_until(
      *hub, [&] { return worker.try_wait().has_value(); }, 20s));
  CHECK(worker.try_wait() == ExitStatus{});
  CHECK(hub->statistics().dropped_console_lines > 0);
  // Now somebody reads.
  std::string text;
  std::thread reader([&] {
    char buffer[65536];
    for (ssize_t n = 0; (n = ::read(read_end.value(), buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<std::size_t>(n));
  });
  CHECK(hub->drain(soon()));
  const auto dropped = hub->statistics().dropped_console_lines;
  hub.reset();
  write_end.reset();
  reader.join();
  std::uint64_t shown = 0, told = 0;
  for (const auto& line : tests::lines_of(text)) {
    CHECK(line.starts_with("> "));
    ++shown;
  }
  for (const auto& line : tests::lines_of(files.error_text())) {
    unsigned long long count = 0;
    if (const auto at = line.find("too slow: ");
        at != std::string::npos && std::sscanf(line.c_str() + at, "too slow: %llu", &count) == 1)
      told += count;
  }
  CHECK(told == dropped);
  CHECK(shown + dropped == kLines);
  CHECK(tests::lines_of(tests::read_file(files.directory.file("o.log"))).size() == kLines);
}

TEST_CASE("a console that nobody reads holds a worker without a file, and nothing is lost") {
  int ends[2];
  const bool socket = GENERATE(false, true);
  const bool whole_lines = GENERATE(false, true);
  REQUIRE((socket ? ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) : ::pipe2(ends, O_CLOEXEC)) == 0);
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  FileConsole files;
  auto hub =
      std::make_unique<OutputHub>(OutputHubOptions{.stdout_fd = write_end.value(), .stderr_fd = files.error.value()});
  constexpr int kLines = 100'000;
  auto worker =
      start(*hub, {.console_stderr = false, .whole_lines = whole_lines}, {fmt::format("lines={}", kLines)}, 0);
  // The other stream goes on meanwhile.
  auto other = hub->attach({.console_stdout = false});
  write_all(other.stderr_fd, "said meanwhile\n");
  CHECK(!run_until(
      *hub, [&] { return worker.try_wait().has_value(); }, 1s));
  CHECK(files.error_text() == "said meanwhile\n");
  other = {};
  std::string text;
  std::thread reader([&] {
    char buffer[65536];
    for (ssize_t n = 0; (n = ::read(read_end.value(), buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<std::size_t>(n));
  });
  CHECK(run_until(
      *hub, [&] { return worker.try_wait().has_value(); }, 20s));
  CHECK(hub->drain(soon()));
  CHECK(hub->statistics().dropped_console_bytes == 0);
  hub.reset();
  write_end.reset();
  reader.join();
  CHECK(tests::lines_of(text).size() == kLines);
  CHECK(files.error_text() == "said meanwhile\n");
}

TEST_CASE("at the end a reader gets the patience it was promised, and what it did not take is told") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  FileConsole files;
  OutputHub hub({.stdout_fd = write_end.value(),
                 .stderr_fd = files.error.value(),
                 .final_patience = 600ms,
                 .final_patience_with_copy = 100ms});
  const bool copy = GENERATE(false, true);
  auto worker_ends = hub.attach({.stdout_file = copy ? files.directory.file("o.log") : ""});
  std::thread writer([&] {  // more than a pipe holds
    std::string line(100, 'y');
    line.back() = '\n';
    for (int i = 0; i < 3000; ++i) write_all(worker_ends.stdout_fd, line);
    worker_ends = {};
  });
  CHECK(run_until(hub, [&] { return hub.ended(1); }));
  writer.join();
  const auto begin = Clock::now();
  SECTION("nobody reads") {
    CHECK(!hub.drain(soon()));
    CHECK(Clock::now() - begin >= (copy ? 100ms : 600ms));
    if (copy) CHECK(Clock::now() - begin < 500ms);
    const auto lost = hub.statistics().dropped_console_bytes;
    CHECK(lost > 200'000);  // all but what the pipe holds
    CHECK_THAT(files.error_text(), Catch::Contains(fmt::format("{} bytes of stdout were not written", lost)));
    CHECK((files.error_text().find("log files are complete") != std::string::npos) == copy);
  }
  SECTION("a signal ends the wait") {
    CHECK(!hub.drain(soon(), [&] { return Clock::now() - begin > 50ms; }));
    CHECK(Clock::now() - begin < 500ms);
    CHECK_THAT(files.error_text(), Catch::Contains("told to stop"));
  }
  SECTION("a slow reader that goes on gets it all") {
    std::size_t taken = 0;
    std::thread reader([&] {
      char buffer[65536];
      while (taken < 300'000) {
        std::this_thread::sleep_for(copy ? 20ms : 200ms);
        const ssize_t n = ::read(read_end.value(), buffer, sizeof buffer);
        if (n > 0) taken += static_cast<std::size_t>(n);
      }
    });
    CHECK(hub.drain(soon()));
    reader.join();
    CHECK(files.error_text().empty());
  }
}

TEST_CASE("a notice never lands inside a line of a worker") {
  FileConsole console;
  auto ends = console.hub.attach({.whole_lines = false});
  write_all(ends.stderr_fd, "12345");
  CHECK(run_until(console.hub, [&] { return console.error_text() == "12345"; }));
  console.hub.write_notice("dtrun: notice");
  write_all(ends.stderr_fd, "6\n");
  CHECK(run_until(console.hub, [&] { return console.error_text() == "12345\ndtrun: notice\n6\n"; }));
}

TEST_CASE("a console on a full disk is told with its error, and counted") {
  FileConsole console;
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  REQUIRE(full);
  OutputHub hub({.stdout_fd = full.value(), .stderr_fd = console.error.value()});
  auto worker = start(hub, {}, {"lines=2000", "exit=0"}, 0);
  CHECK(hub.drain(soon()));
  std::string told;
  for (const auto& line : tests::lines_of(console.error_text()))
    if (line.starts_with("dtrun: ")) told += line + "\n";
  CHECK(tests::lines_of(told).size() == 2);
  CHECK_THAT(told, Catch::Contains("stdout cannot be written: No space left on device") &&
                       Catch::Contains(fmt::format("dtrun: {} bytes of stdout could not be written",
                                                   hub.statistics().dropped_console_bytes)));
  CHECK(hub.statistics().dropped_console_lines == 2000);
}

TEST_CASE("a reader that leaves does not end the job") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  FileConsole files;
  OutputHub hub({.stdout_fd = write_end.value(), .stderr_fd = files.error.value()});
  read_end.reset();
  auto worker = start(hub, {.prefix = "> "}, {"lines=2000", "exit=4"}, 0);
  CHECK(hub.drain(soon()));
  CHECK(worker.wait(soon()) == ExitStatus{.code = 4});
  CHECK(hub.statistics().dropped_console_lines == 2000);
  CHECK(tests::lines_of(files.error_text()).size() == 2001);
  CHECK_THAT(files.error_text(), Catch::Contains("dtrun: nobody reads stdout any more; the job goes on"));
}

TEST_CASE("drain does not wait for a grandchild that holds the pipe") {
  FileConsole console;
  OutputHub::CaptureId id = 0;
  auto worker = start(console.hub, {.prefix = "> "}, {"print=before", "child", "exit=0"}, 0, &id);
  CHECK(worker.wait(soon()) == ExitStatus{});
  CHECK(!console.hub.drain(soon(100ms)));
  CHECK(console.hub.ended(id));
  CHECK(console.out_text() == "> before\n");
  ::kill(-worker.pid(), SIGKILL);
}

TEST_CASE("a full disk loses bytes of the file, counted and told once, and nothing else") {
  const tests::TempDirectory directory;
  if (::geteuid() != 0 || ::mount("none", directory.path().c_str(), "tmpfs", 0, "size=64k") != 0) {
    WARN("skipped: needs to mount a small tmpfs");
    return;
  }
  FileConsole console;
  const auto path = directory.file("o.log");
  std::ofstream(directory.file("ballast")) << std::string(40'000, 'x');
  auto ends = console.hub.attach({.stdout_file = path, .prefix = "> "});
  const std::string line = std::string(999, 'y') + "\n";
  for (int i = 0; i < 60; ++i) {
    write_all(ends.stdout_fd, line);
    console.hub.process();
  }
  const auto lost = console.hub.statistics().lost_file_bytes;
  CHECK(lost > 10'000);
  std::filesystem::remove(directory.file("ballast"));
  write_all(ends.stdout_fd, "after\n");
  CHECK(run_until(console.hub, [&] { return tests::read_file(path).ends_with("after\n"); }));
  CHECK(console.hub.statistics().lost_file_bytes == lost);
  CHECK(tests::read_file(path).size() == 60'000 - lost + 6);
  CHECK(tests::lines_of(console.out_text()).size() == 61);
  CHECK(tests::lines_of(console.error_text()).size() == 1);
  CHECK_THAT(console.error_text(), Catch::Contains(path) && Catch::Contains("No space left"));
  ends = {};
  console.hub.drain(soon());
  CHECK_THAT(console.error_text(), Catch::EndsWith(fmt::format("dtrun: {} bytes are missing in {}\n", lost, path)));
  console.hub.forget(1);
  CHECK(tests::lines_of(console.error_text()).size() == 2);
  ::umount2(directory.path().c_str(), MNT_DETACH);
}

TEST_CASE("a file that cannot be opened is told, the worker runs on") {
  FileConsole console;
  auto ends = console.hub.attach({.stdout_file = "/no/such/directory/o.log", .prefix = "> "});
  write_all(ends.stdout_fd, "x\ny\n");
  const auto id = ends.id;
  ends = {};
  CHECK(console.hub.drain(soon()));
  CHECK(console.out_text() == "> x\n> y\n");
  CHECK_THAT(console.error_text(), Catch::Contains("/no/such/directory/o.log"));
  CHECK(console.hub.statistics().lost_file_bytes == 4);
  console.hub.forget(id);
  CHECK(console.hub.statistics().lost_file_bytes == 4);
}

TEST_CASE("on a terminal lines are coloured and harmless") {
  int terminal = -1, slave = -1;
  REQUIRE(::openpty(&terminal, &slave, nullptr, nullptr, nullptr) == 0);
  const UniqueFd terminal_fd(terminal), slave_fd(slave);
  OutputHub hub({.stdout_fd = slave, .stderr_fd = slave});
  auto ends = hub.attach({.prefix = "[rank1] ", .color_index = 1});
  write_all(ends.stdout_fd, "\x1b[2Jx\x1b[31mred\n");
  ends = {};
  CHECK(hub.drain(soon()));
  char buffer[256];
  const ssize_t n = ::read(terminal, buffer, sizeof buffer);
  REQUIRE(n > 0);
  CHECK(std::string(buffer, static_cast<std::size_t>(n)) == "\x1b[32m[rank1] \x1b[0m\\x1b[2Jx\x1b[31mred\x1b[0m\r\n");
  CHECK((::fcntl(slave, F_GETFL) & O_NONBLOCK) == 0);  // the terminal belongs to the shell as well
}

TEST_CASE("captures leave no descriptor behind") {
  FileConsole console;
  const auto before = open_descriptors();
  for (int i = 0; i < 300; ++i) {
    auto ends =
        console.hub.attach({.stdout_file = console.directory.file("o"), .stderr_file = console.directory.file("e")});
    const auto id = ends.id;
    ends = {};
    if (i % 2 == 0) console.hub.drain(soon());
    console.hub.forget(id);
  }
  CHECK(open_descriptors() == before);
}
