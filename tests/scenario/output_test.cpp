// The workers' output under bad conditions: readers that stand still, full disks, hostile text, pipes that stay open.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "rendezvous/base/unique_fd.hpp"
#include "tests/catch.hpp"
#include "tests/scenario/dtrun_job.hpp"
#include "tests/scenario/mixed_output.hpp"

using namespace dtrun;
using namespace dtrun::tests;
using namespace std::chrono_literals;
using launcher::ExitStatus;
namespace fs = std::filesystem;

namespace {

// The console of a job: a pipe that is read when the test says so.
class Console {
 public:
  Console() {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    read_end_.reset(ends[0]);
    write_end_.reset(ends[1]);
  }
  ~Console() {
    if (reader_.joinable()) finish();
  }
  int fd() const { return write_end_.value(); }
  void read_on() {
    reader_ = std::thread([this] {
      std::string buffer(65536, '\0');
      for (ssize_t n = 0; (n = ::read(read_end_.value(), buffer.data(), buffer.size())) > 0;)
        bytes_ += static_cast<std::size_t>(n);
    });
  }
  // After the job has ended: how many bytes there were in all.
  std::size_t finish() {
    write_end_.reset();
    if (!reader_.joinable()) read_on();
    reader_.join();
    return bytes_;
  }

 private:
  UniqueFd read_end_, write_end_;
  std::thread reader_;
  std::size_t bytes_ = 0;
};

// The only file of that name below `directory` and `rank`.
std::string log_of(const TempDirectory& directory, int rank, const std::string& name = "stdout.log") {
  for (const auto& entry : fs::recursive_directory_iterator(directory.path())) {
    if (entry.path().filename() == name && entry.path().parent_path().filename() == std::to_string(rank))
      return entry.path().string();
  }
  return {};
}

// The sum of the numbers that stand in front of `after` on lines with `word`.
std::uint64_t told(const std::string& text, const std::string& word, const std::string& after) {
  std::uint64_t sum = 0;
  for (const auto& line : lines_of(text)) {
    auto at = line.find(after);
    if (line.find(word) == std::string::npos || at == std::string::npos) continue;
    while (at > 0 && std::isdigit(static_cast<unsigned char>(line[at - 1])) != 0) --at;
    sum += std::stoull(line.substr(at));
  }
  return sum;
}

constexpr std::size_t kFlood = 200'000'000, kLine = 32;

struct Flooded {
  double worker_seconds = 0;  // as the worker itself was seen to run
  double exit_seconds = 0;    // from its end to dtrun's
};

// A worker writes 200 MB to a console and a file.
Flooded flood(bool reader) {
  const TempDirectory directory;
  Console console;
  if (reader) console.read_on();
  Job job({kDtrun, "--nproc-per-node=1", "--tee=1", "--log-prefix=> ", "--log-dir=" + directory.file("logs"),
           "--events=" + directory.file("events"), kProbe, fmt::format("flood={}", kFlood)},
          {.stdout_fd = console.fd()});
  CHECK(job.wait(60s) == ExitStatus{});
  const auto end = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  CHECK(fs::file_size(log_of(directory, 0)) == kFlood);
  const auto shown = console.finish();
  const auto dropped_lines = told(job.error(), "too slow", " lines dropped");
  const auto unwritten = told(job.error(), "were not written", " bytes of stdout");
  INFO(job.error());
  CHECK(shown + unwritten + dropped_lines * (kLine + 2) == kFlood / kLine * (kLine + 2));
  CHECK((dropped_lines == 0) == reader);
  Flooded result;
  for (const auto& line : lines_of(directory.read("events"))) {
    const auto event = nlohmann::json::parse(line);
    if (event["event"] == "worker_started") result.worker_seconds -= event["monotonic"].get<double>();
    if (event["event"] == "worker_ended") {
      result.worker_seconds += event["monotonic"].get<double>();
      result.exit_seconds = end - event["monotonic"].get<double>();
    }
  }
  return result;
}

}  // namespace

TEST_CASE("a console that nobody reads costs a worker with a log file a tenth of its speed at most") {
  constexpr int kPairs = 8;  // the best of each counts: this machine has other work, too
  double free = 1e9, stuck = 1e9, exit = 1e9;
  for (int i = 0; i < kPairs && (i < 2 || free < 0.9 * stuck || exit > 1.0); ++i) {
    const auto without = flood(false);
    free = std::min(free, flood(true).worker_seconds);
    stuck = std::min(stuck, without.worker_seconds);
    exit = std::min(exit, without.exit_seconds);
  }
  CHECK(free >= 0.9 * stuck);
  CHECK(exit <= 1.0);
}

TEST_CASE("while the console is stuck, the agent does everything else at once") {
  const TempDirectory directory;
  Console console;
  Job job({kDtrun, "--nproc-per-node=2", "--tee=3", "--log-dir=" + directory.file("logs"), kProbe, "rank=0",
           "flood=100000000", "wait-for=" + directory.file("go"), "end", "rank=1", "show=USR1", "print=ready",
           "wait-for=" + directory.file("go")},
          {.stdout_fd = console.fd()});
  const auto shown = [&] { return read_file(log_of(directory, 1)); };
  REQUIRE(eventually([&] { return shown().find("ready") != std::string::npos; }));
  std::vector<std::chrono::steady_clock::duration> lags;
  for (int i = 1; i <= 21; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    ::kill(Job::children_of(agent_of(job)).back(), SIGUSR1);
    REQUIRE(eventually([&] { return lines_of(shown()).size() >= static_cast<std::size_t>(1 + i); }));
    lags.push_back(std::chrono::steady_clock::now() - begin);
  }
  std::sort(lags.begin(), lags.end());
  CHECK(lags[10] < 50ms);
  directory.write("go", "");
  CHECK(job.wait(20s) == ExitStatus{});
  CHECK(fs::file_size(log_of(directory, 0)) == 100'000'000);
}

TEST_CASE("20 MB of mixed output from 8 ranks lose nothing in the files while the console's reader sleeps") {
  constexpr int kRanks = 8;
  constexpr std::size_t kBytes = 20'000'000 / kRanks / 2;
  const TempDirectory directory;
  Console console;
  Job job({kDtrun, "--nproc-per-node=8", "--tee=3", "--log-dir=" + directory.file("logs"), kProbe,
           fmt::format("mixed={}", kBytes)},
          {.stdout_fd = console.fd()});
  CHECK(job.wait(30s) == ExitStatus{});
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto seed = static_cast<std::uint64_t>(2 * rank);
    CHECK((read_file(log_of(directory, rank)) == mixed_output(seed, kBytes)));
    CHECK((read_file(log_of(directory, rank, "stderr.log")) == mixed_output(seed + 1, kBytes)));
  }
}

TEST_CASE("a full log disk is told, its loss counted, and logging goes on when there is room again") {
  const TempDirectory directory;
  const auto disk = directory.file("disk");
  fs::create_directory(disk);
  const auto shell = "mount -t tmpfs -o size=1m none " + disk + " || exit 77; head -c 600000 /dev/zero > " + disk +
                     "/ballast; " + kDtrun + " --nproc-per-node=1 --redirects=1 --log-dir=" + disk + "/logs " + kProbe +
                     " flood=2000000 remove=" + disk + "/ballast flood=32000 print=after; code=$?; cat " + disk +
                     "/logs/*/*/*/stdout.log > " + directory.file("copy") + "; exit $code";
  Job job({"/usr/bin/unshare", "-Urm", "/bin/sh", "-c", shell});
  const auto status = job.wait();
  if (status == ExitStatus{.code = 77} || job.error().find("unshare failed") != std::string::npos) {
    WARN("skipped: no user namespace with a mount of its own here: " << job.error());
    return;
  }
  INFO(job.error());
  CHECK(status == ExitStatus{});
  const auto text = directory.read("copy");
  const auto missing = told(job.error(), "are missing in", " bytes");
  CHECK(missing > 1'000'000);
  CHECK(text.size() + missing == 2'000'000 + 32'000 + 6);
  CHECK(text.ends_with("characters\nafter\n"));
  CHECK(lines_of(job.error()).size() == 2);
  CHECK_THAT(job.error(), Catch::Contains("No space left"));
}

TEST_CASE("on a terminal a worker can colour its lines and nothing else") {
  const std::string forged = "dtrun: rank 0 failed";
  Job job(dtrun_argv({"--nproc-per-node=2"},
                     {"rank=0", "print=good \x1b[32mgreen\x1b[0m", "print=x\r" + forged,
                      "print=\x1b]0;title\x07\x1b]8;;http://evil\x1b\\link", "print=\x1b[2J\x1b[1;1H\x1b[A" + forged,
                      "print=\xc2\x9b"
                      "31m\x9b"
                      "2J\b\b\b\x0b\x0c" +
                          forged,
                      "end"}),
          {.terminal = true});
  CHECK(job.wait() == ExitStatus{});
  const auto text = job.out();
  INFO(text);
  for (std::size_t at = text.find('\x1b'); at != std::string::npos; at = text.find('\x1b', at + 1)) {
    const auto end = text.find_first_not_of("[0123456789;", at + 1);
    CHECK((end != std::string::npos && text[end] == 'm'));
  }
  for (const char c : text)
    CHECK((c == '\n' || c == '\r' || c == '\t' || c == '\x1b' || static_cast<unsigned char>(c) >= ' '));
  for (const auto& line : lines_of(text)) {
    CHECK(line.find(forged) != 0);
    CHECK(std::count(line.begin(), line.end(), '\r') <= 1);  // the terminal's own, at the end
  }
  CHECK_THAT(text,
             Catch::Contains("\x1b[32mgreen") && Catch::Contains("\\x1b]0;title\\x07") && Catch::Contains("\\x9b"));
}

TEST_CASE("a host name cannot forge lines of the report") {
  const std::string name = "evil\n\x1b[2Jdtrun: all is well";
  for (const bool terminal : {false, true}) {
    Job job(dtrun_argv({"--nproc-per-node=1", "--log-prefix=[${hostname}] "}, {"error=reason", "exit=3"}),
            {.terminal = terminal, .host_name = name});
    const auto status = job.wait();
    if (status == ExitStatus{.code = kNoNamespace}) {
      WARN("skipped: no namespace with a host name of its own here");
      return;
    }
    CHECK(status == ExitStatus{.code = 3});
    const auto text = terminal ? job.out() : job.error();
    INFO(text);
    CHECK_THAT(text, Catch::Contains("evil\\x0a\\x1b[2Jdtrun: all is well") && Catch::Contains("root cause"));
    CHECK(text.find("\x1b[2J") == std::string::npos);
    for (const auto& line : lines_of(text)) CHECK(line.find("dtrun: all is well") != 0);
  }
}

TEST_CASE("a grandchild that keeps the output open costs no processor time and at most a second at the end") {
  const TempDirectory directory;
  Job job(
      dtrun_argv({"--nproc-per-node=1"}, {"print=before", "child", "close-output", "touch=" + directory.file("idle"),
                                          "wait-for=" + directory.file("go"), "touch=" + directory.file("end")}));
  REQUIRE(
      eventually([&] { return fs::exists(directory.file("idle")) && job.out().find("before") != std::string::npos; }));
  const auto schedule = "/proc/" + std::to_string(agent_of(job)) + "/schedstat";
  const auto on_processor = [&] { return std::chrono::nanoseconds(std::atoll(read_file(schedule).c_str())); };
  const auto before = on_processor();
  std::this_thread::sleep_for(2s);  // what is looked at is the time itself
  CHECK(on_processor() - before < 20ms);
  directory.write("go", "");
  REQUIRE(eventually([&] { return fs::exists(directory.file("end")); }));
  const auto begin = std::chrono::steady_clock::now();
  const auto at_end = on_processor();
  auto last = at_end;
  eventually(
      [&] {
        const auto now = on_processor();
        last = std::max(last, now);
        return now == 0ns;
      },
      900ms);
  CHECK(last - at_end < 20ms);
  CHECK(job.wait(5s) == ExitStatus{});
  CHECK(std::chrono::steady_clock::now() - begin < 1300ms);
}

TEST_CASE("a filter hides ranks from the console, not from files and not from the report") {
  const TempDirectory directory;
  Job job(
      dtrun_argv({"--nproc-per-node=4", "--tee=3", "--local-ranks-filter=0", "--log-dir=" + directory.file("logs")},
                 {"print=out line", "error=err line", "rank=3", "error=the real reason", "sleep=0.2", "exit=5", "end",
                  "sleep=0.1", "rank=0", "forever", "end", "rank=1", "forever", "end", "rank=2", "forever"}));
  CHECK(job.wait() == ExitStatus{.code = 5});
  CHECK(job.out() == "[default0]:out line\n");
  const auto error = job.error();
  INFO(error);
  const auto report = error.find("dtrun: ");
  REQUIRE(report != std::string::npos);
  CHECK(error.substr(0, report) == "[default0]:err line\n");
  CHECK_THAT(error.substr(report), Catch::Contains("rank 3") && Catch::Contains("the real reason") &&
                                       Catch::Contains(directory.file("logs")));
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(read_file(log_of(directory, rank)) == "out line\n");
    CHECK(read_file(log_of(directory, rank, "stderr.log")) ==
          (rank == 3 ? "err line\nthe real reason\n" : "err line\n"));
  }
  Job good(
      dtrun_argv({"--nproc-per-node=4", "--tee=3", "--local-ranks-filter=0", "--log-dir=" + directory.file("good")},
                 {"print=out line"}));
  CHECK(good.wait() == ExitStatus{});
  CHECK(good.error().empty());
}
