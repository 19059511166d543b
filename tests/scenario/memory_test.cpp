// Workers in a memory cgroup of their own (A14, C19): what the kernel kills is called out of memory.
#include <fcntl.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "tests/catch.hpp"
#include "tests/scenario/dtrun_job.hpp"

using namespace dtrun;
using namespace dtrun::tests;
using namespace std::chrono_literals;
using launcher::ExitStatus;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

constexpr auto kLimit = 100 << 20;

bool put(const fs::path& path, const std::string& text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  const bool written = fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  ::close(fd);
  return written;
}

// A memory cgroup of 100 MiB, v1 or v2, whichever this machine lets us make.
class LimitedCgroup {
 public:
  LimitedCgroup() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return;  // the sanitizer alone takes more than that
#endif
    const auto name = "dtrun-test-" + std::to_string(::getpid());
    for (const fs::path root : {"/sys/fs/cgroup/memory", "/sys/fs/cgroup"}) {
      std::error_code error;
      if (!fs::create_directory(root / name, error)) continue;
      path_ = root / name;
      put(path_ / "memory.swap.max", "0");
      if (put(path_ / "memory.limit_in_bytes", std::to_string(kLimit)) ||
          put(path_ / "memory.max", std::to_string(kLimit)))
        return;
      remove();
    }
  }
  LimitedCgroup(const LimitedCgroup&) = delete;
  LimitedCgroup& operator=(const LimitedCgroup&) = delete;
  ~LimitedCgroup() { remove(); }
  bool made() const { return !path_.empty(); }

  // The command line of a dtrun that runs in it.
  std::vector<std::string> inside(const std::vector<std::string>& argv) const {
    std::vector<std::string> result{"/bin/sh", "-c", "echo $$ > \"$0\" && exec \"$@\"",
                                    (path_ / "cgroup.procs").string()};
    result.insert(result.end(), argv.begin(), argv.end());
    return result;
  }

 private:
  void remove() {
    if (path_.empty()) return;
    eventually([&] { return ::rmdir(path_.c_str()) == 0; }, 2s);
    path_.clear();
  }
  fs::path path_;
};

struct Ended {
  std::optional<ExitStatus> status;
  std::string text;
  json report;
};

Ended run_inside(const LimitedCgroup& cgroup, std::vector<std::string> options,
                 const std::vector<std::string>& commands) {
  const TempDirectory directory;
  options.push_back("--report=" + directory.file("report"));
  Job job(cgroup.inside(dtrun_argv(std::move(options), commands)));
  auto status = job.wait(20s);
  return {status, job.error(), json::parse(directory.read("report"))};
}

}  // namespace

TEST_CASE("C19: a worker that the kernel kills for its memory is named so, with limit and peak") {
  const LimitedCgroup cgroup;
  if (!cgroup.made()) {
    WARN("skipped: no memory cgroup can be made here");
    return;
  }
  const std::vector<std::string> eater{"rank=1", "allocate=300", "end", "forever"};
  const auto ended = run_inside(cgroup, {"--nproc-per-node=2"}, eater);
  INFO(ended.text);
  CHECK(ended.status == ExitStatus{.code = 137});
  CHECK_THAT(ended.text, Catch::Contains("root cause: rank 1") &&
                             Catch::Contains("killed by the kernel OOM killer: limit 100 MiB, peak "));
  const auto root = ended.report.at("root_cause");
  CHECK(root["out_of_memory"] == true);
  CHECK(root["memory_limit"] == kLimit);
  CHECK(root["memory_peak"].get<std::int64_t>() > kLimit / 2);

  // A SIGKILL from elsewhere in the same cgroup is not taken for one.
  const auto killed = run_inside(cgroup, {"--nproc-per-node=2"}, {"rank=1", "die=KILL", "end", "forever"});
  CHECK(killed.report.at("root_cause")["out_of_memory"] == false);
}

TEST_CASE("a process below a worker that the kernel kills for its memory is noted") {
  const LimitedCgroup cgroup;
  if (!cgroup.made()) {
    WARN("skipped: no memory cgroup can be made here");
    return;
  }
  Job job(cgroup.inside({kDtrun, "--no-python", "/bin/sh", "-c", kProbe + " allocate=300; exit 5"}));
  CHECK(job.wait(20s) == ExitStatus{.code = 5});
  CHECK_THAT(job.error(), Catch::Contains("root cause: rank 0") && Catch::Contains(": exit code 5\n") &&
                              Catch::Contains("the kernel killed 1 other process of this cgroup"));
}

TEST_CASE("C19: out of memory at the same step twice is not tried a third time, without a step it is") {
  const LimitedCgroup cgroup;
  if (!cgroup.made()) {
    WARN("skipped: no memory cgroup can be made here");
    return;
  }
  const auto same = run_inside(cgroup, {"--max-restarts=5"}, {"progress=50", "allocate=300", "forever"});
  INFO(same.text);
  CHECK(same.status == ExitStatus{.code = 137});
  CHECK(same.report.at("attempts").size() == 2);
  CHECK_THAT(same.text, Catch::Contains("no restart: out of memory at step 50 again"));
  const auto silent = run_inside(cgroup, {"--max-restarts=2"}, {"allocate=300", "forever"});
  CHECK(silent.report.at("attempts").size() == 3);
  for (const auto& attempt : silent.report.at("attempts")) CHECK(attempt["out_of_memory"] == true);
}
