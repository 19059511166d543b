// Memory that outlives a rank, but not its job (DTRUN_SNAPSHOT_FD).
#include <sys/stat.h>

#include <csignal>
#include <filesystem>

#include "tests/catch.hpp"
#include "tests/scenario/dtrun_job.hpp"

using namespace dtrun;
using namespace dtrun::tests;
using namespace std::chrono_literals;
using Catch::Contains;
using launcher::ExitStatus;
namespace fs = std::filesystem;

namespace {

const std::string kPrefix = "--log-prefix=[rank${rank}] ";

// Of the file behind a descriptor: no two on a machine have the same one.
using Identity = std::pair<dev_t, ino_t>;

std::optional<Identity> identity_of(const fs::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return {};
  return Identity{info.st_dev, info.st_ino};
}

// Processes of this machine that hold it.
std::vector<std::string> holders_of(const Identity& wanted) {
  std::vector<std::string> holders;
  for (const auto& process : fs::directory_iterator("/proc")) {
    std::error_code gone;
    for (const auto& descriptor : fs::directory_iterator(process.path() / "fd", gone))
      if (identity_of(descriptor.path()) == wanted) holders.push_back(process.path().filename());
  }
  return holders;
}

fs::path descriptor(pid_t pid) { return fs::path("/proc") / std::to_string(pid) / "fd" / "99"; }

}  // namespace

TEST_CASE("snapshot memory is what the rank that was killed wrote, for each rank its own, and empty before") {
  const TempDirectory directory;
  const auto filled = directory.file("filled");
  Job job(
      dtrun_argv({"--nproc-per-node=2", "--max-restarts=2", kPrefix},
                 {"snapshot", "attempt=0", "rank=0", "snapshot=zero", "touch=" + filled, "forever", "end", "attempt=0",
                  "rank=1", "wait-for=" + filled, "snapshot=one", "die=KILL", "end", "attempt=1", "die=SEGV"}));
  CHECK(job.wait() == ExitStatus{});
  for (const auto* line :
       {"[rank0] snapshot <>\n", "[rank1] snapshot <>\n", "[rank0] snapshot <zero>\n", "[rank1] snapshot <one>\n"})
    CHECK_THAT(job.out(), Contains(line));
}

TEST_CASE("snapshot memory is one descriptor more than a program has without restarts, and it is no file") {
  Job job(dtrun_argv({"--nproc-per-node=2", "--max-restarts=1", kPrefix},
                     {"env=DTRUN_SNAPSHOT_FD", "fds", "print=up", "forever"}));
  REQUIRE(eventually([&] {
    const auto out = job.out();
    return out.find("[rank0] up") != std::string::npos && out.find("[rank1] up") != std::string::npos;
  }));
  CHECK(lines_of(job.out()).size() == 2 * 6);
  CHECK_THAT(job.out(), Contains("[rank1] DTRUN_SNAPSHOT_FD=99\n") && Contains("[rank1] fd 99\n"));
  std::vector<Identity> memories;
  for (const pid_t worker : Job::children_of(agent_of(job))) {
    CHECK_THAT(fs::read_symlink(descriptor(worker)).string(), Catch::StartsWith("/memfd:dtrun-snapshot-"));
    const auto identity = identity_of(descriptor(worker));
    REQUIRE(identity);
    CHECK(holders_of(*identity).size() == 2);  // the worker and the agent; neither guardian nor the other rank
    memories.push_back(*identity);
  }
  REQUIRE(memories.size() == 2);
  CHECK(memories[0] != memories[1]);
}

TEST_CASE("without restarts there is no snapshot memory, nor that of a job around this one") {
  Job job(dtrun_argv({"--nproc-per-node=1"}, {"env=DTRUN_SNAPSHOT_FD", "fds"}),
          {.environment = {"DTRUN_SNAPSHOT_FD=99"}});
  CHECK(job.wait() == ExitStatus{});
  CHECK_THAT(job.out(), Contains("DTRUN_SNAPSHOT_FD=(unset)") && !Contains("fd 99"));
}

TEST_CASE("where a worker cannot have a descriptor of that number there is no snapshot memory, and the job runs") {
  std::vector<std::string> words{"/bin/sh", "-c", "ulimit -n 64; exec \"$@\"", "sh"};
  const auto argv = dtrun_argv({"--nproc-per-node=1", "--max-restarts=1"}, {"env=DTRUN_SNAPSHOT_FD"});
  words.insert(words.end(), argv.begin(), argv.end());
  Job job(words);
  CHECK(job.wait() == ExitStatus{});
  CHECK_THAT(job.out(), Contains("DTRUN_SNAPSHOT_FD=(unset)"));
}

TEST_CASE("nobody holds the snapshot memory after kill -9 of the agent, nor after the job's end") {
  const bool killed = GENERATE(true, false);
  Job job(dtrun_argv({"--nproc-per-node=2", "--max-restarts=3"},
                     {"snapshot=content", "child", "setsid-child", "daemon", "print=up", "forever"}));
  REQUIRE(eventually([&] { return job.processes().size() == 2 + 2 * 4; }));
  const pid_t agent = agent_of(job);
  std::vector<Identity> memories;
  for (const pid_t worker : Job::children_of(agent))
    if (const auto identity = identity_of(descriptor(worker))) memories.push_back(*identity);
  REQUIRE(memories.size() >= 2);
  ::kill(killed ? agent : job.pid(), killed ? SIGKILL : SIGTERM);
  CHECK(job.wait(20s));
  CHECK(job.all_gone(5s));
  for (const auto& memory : memories) CHECK(eventually([&] { return holders_of(memory).empty(); }));
}
