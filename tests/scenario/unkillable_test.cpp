// Processes that SIGKILL does not end (A8, C04): given up in bounded time, named, and nothing is started beside them.
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <nlohmann/json.hpp>

#include "tests/catch.hpp"
#include "tests/scenario/dtrun_job.hpp"

using namespace dtrun;
using namespace dtrun::tests;
using namespace std::chrono_literals;
using launcher::ExitStatus;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

// dtrun as an ordinary user whose rank 1 becomes root: the system refuses every signal to it, SIGKILL too, as it would
// to a worker under sudo.
class ForeignWorker {
 public:
  ForeignWorker() {
    struct statvfs info {};
    const bool nosuid = ::statvfs(directory_.path().c_str(), &info) != 0 || (info.f_flag & ST_NOSUID) != 0;
    if (::geteuid() != 0 || nosuid || ::access("/usr/bin/setpriv", X_OK) != 0) return;
    fs::copy_file(kProbe, probe_);
    can_ = ::chmod(probe_.c_str(), 04755) == 0 && ::chmod(directory_.path().c_str(), 0777) == 0;
  }
  bool can() const { return can_; }
  std::string file(const std::string& name) const { return directory_.file(name); }

  std::vector<std::string> argv(std::vector<std::string> options, const std::vector<std::string>& commands) const {
    std::vector<std::string> words{"/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", kDtrun};
    words.insert(words.end(), options.begin(), options.end());
    words.push_back(probe_);
    words.insert(words.end(), commands.begin(), commands.end());
    return words;
  }
  // A file system may hold back the binary from other users; then there is nothing to test.
  bool dtrun_runs() const {
    Job job(argv({}, {}));
    return job.wait(10s) == ExitStatus{};
  }

 private:
  TempDirectory directory_;
  std::string probe_ = directory_.file("probe");
  bool can_ = false;
};

JobOptions short_limit() { return {.environment = {"DTRUN_KILL_LIMIT=1"}}; }

int shell(const std::string& line) {
  Job job({"/bin/sh", "-c", line + " >/dev/null 2>&1"});
  const auto status = job.wait(30s);
  return status ? status->shell_code() : -1;
}

// An ext4 file system of its own; freeze() stops every writer in the kernel, out of reach of signals.
class FreezableMount {
 public:
  FreezableMount() {
    if (::geteuid() != 0) return;
    const auto image = directory_.file("image");
    mounted_ = shell("PATH=$PATH:/usr/sbin:/sbin; truncate -s 16M " + image + " && mkfs.ext4 -q " + image +
                     " && mkdir " + path() + " && mount -o loop " + image + " " + path()) == 0;
  }
  FreezableMount(const FreezableMount&) = delete;
  FreezableMount& operator=(const FreezableMount&) = delete;
  ~FreezableMount() {
    if (!mounted_) return;
    thaw();
    CHECK(eventually([&] { return shell("umount " + path()) == 0; }));
  }
  bool mounted() const { return mounted_; }
  std::string path() const { return directory_.file("mount"); }
  // It thaws by itself after a minute, also when this test is killed.
  bool freeze() {
    thaw_later_ = std::make_unique<Job>(
        std::vector<std::string>{"/bin/sh", "-c", "PATH=$PATH:/usr/sbin:/sbin; sleep 60; fsfreeze -u " + path()});
    return shell("PATH=$PATH:/usr/sbin:/sbin; fsfreeze -f " + path()) == 0;
  }
  void thaw() { shell("PATH=$PATH:/usr/sbin:/sbin; fsfreeze -u " + path()); }

 private:
  TempDirectory directory_;
  bool mounted_ = false;
  std::unique_ptr<Job> thaw_later_;
};

char state_of(pid_t pid) {
  const auto stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  const auto bracket = stat.rfind(')');
  return bracket == std::string::npos || bracket + 2 >= stat.size() ? 'X' : stat[bracket + 2];
}

}  // namespace

TEST_CASE("A8: a worker that cannot be killed is given up in time, named, and ends the job with 75") {
  const ForeignWorker foreign;
  if (!foreign.can() || !foreign.dtrun_runs()) {
    WARN("skipped: needs root, setpriv, and a temporary directory that honours set-user-ID");
    return;
  }
  Job job(foreign.argv({"--nproc-per-node=2", "--grace-period=0.3", "--report=" + foreign.file("report")},
                       {"rank=1", "become-root", "touch=" + foreign.file("up"), "pid", "end", "forever"}),
          short_limit());
  REQUIRE(eventually([&] { return fs::exists(foreign.file("up")) && job.out().find("pid ") != std::string::npos; }));
  const auto pid = std::to_string(std::atoi(job.out().c_str() + job.out().find("pid ") + 4));
  const auto start = std::chrono::steady_clock::now();
  job.signal(SIGTERM);
  CHECK(job.wait(10s) == ExitStatus{.code = 75});
  const auto took = std::chrono::steady_clock::now() - start;
  CHECK(took >= 1300ms);
  CHECK(took <= 2500ms);
  INFO(job.error());
  CHECK_THAT(job.error(), Catch::Contains("rank 1 (pid " + pid + ", state S, in "));
  CHECK_THAT(job.error(), Catch::Contains("cannot be killed"));
  const auto report = json::parse(read_file(foreign.file("report")));
  CHECK(report["outcome"] == "infrastructure");
  CHECK(report["exit_code"] == 75);
  CHECK(job.processes().size() == 1);
}

TEST_CASE("A8: nothing is restarted beside a process that cannot be killed, be it a worker or one that a worker left") {
  const ForeignWorker foreign;
  if (!foreign.can() || !foreign.dtrun_runs()) {
    WARN("skipped: needs root, setpriv, and a temporary directory that honours set-user-ID");
    return;
  }
  const auto up = foreign.file("up"), wait = "wait-for=" + up;
  for (const bool worker : {true, false}) {
    CAPTURE(worker);
    fs::remove(up);
    std::vector<std::string> commands{"rank=1", "become-root"};
    if (!worker) commands.push_back("setsid-child");
    commands.push_back("touch=" + up);
    if (worker) commands.push_back("forever");
    for (const auto& word : {std::string("end"), wait, std::string("exit=9")}) commands.push_back(word);
    Job job(foreign.argv(
                {"--nproc-per-node=2", "--max-restarts=3", "--grace-period=0.3", "--report=" + foreign.file("report")},
                commands),
            short_limit());
    CHECK(job.wait(15s) == ExitStatus{.code = 75});
    INFO(job.error());
    CHECK_THAT(job.error(), Catch::Contains("cannot be killed"));
    CHECK(json::parse(read_file(foreign.file("report")))["attempts"].size() == 1);
  }
}

TEST_CASE("C04: a rank that is stuck in the kernel is named with state and kernel function") {
  FreezableMount mount;
  if (!mount.mounted()) {
    WARN("skipped: no file system can be mounted from a file here");
    return;
  }
  const std::string stuck = "if [ $$RANK = 1 ]; then while :; do echo x > " + mount.path() + "/x; done; fi; sleep 600";
  Job job({kDtrun, "--nproc-per-node=2", "--grace-period=0.3", "--no-python", "/bin/sh", "-c", stuck}, short_limit());
  REQUIRE(eventually([&] { return fs::exists(mount.path() + "/x"); }));
  if (!mount.freeze()) {
    WARN("skipped: fsfreeze does not work here");
    return;
  }
  pid_t rank1 = -1;
  REQUIRE(eventually([&] {
    for (const pid_t pid : job.processes_named("/bin/sh -c")) rank1 = state_of(pid) == 'D' ? pid : rank1;
    return rank1 > 0;
  }));
  const auto start = std::chrono::steady_clock::now();
  job.signal(SIGTERM);
  CHECK(job.wait(10s) == ExitStatus{.code = 75});
  CHECK(std::chrono::steady_clock::now() - start <= 2500ms);
  INFO(job.error());
  CHECK_THAT(job.error(), Catch::Contains("rank 1 (pid " + std::to_string(rank1) + ", state D, in ") &&
                              !Catch::Contains("in )") && Catch::Contains("cannot be killed"));
  CHECK(state_of(rank1) == 'D');
  mount.thaw();
  CHECK(job.all_gone(5s));
}
