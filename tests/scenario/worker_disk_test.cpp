// A disk that is full while the worker saves: the older checkpoint stays, training goes on, and so does saving when
// there is room again.
#include <fmt/format.h>

#include <filesystem>

#include "tests/catch.hpp"
#include "tests/scenario/worker_job.hpp"

using namespace dtrun;
using namespace dtrun::tests;
using Catch::Contains;
using std::chrono::seconds;
namespace fs = std::filesystem;

TEST_CASE("a full disk costs checkpoints, not training, and the older one stays whole") {
  const TempDirectory directory;
  const auto disk = directory.file("disk"), out = directory.file("out"), error = directory.file("error");
  fs::create_directory(disk);
  const auto training = tiny({"--steps", "1000000", "--snapshot-every", "0", "--checkpoint-every", "2", "--log-dir",
                              directory.file("log"), "--checkpoint-dir"});
  const auto steps = fmt::format("wc -l < {}/0/steps.jsonl", directory.file("log"));
  // `within` waits for the job to do something, and gives up when it has ended.
  const auto script = fmt::format(
      "mount -t tmpfs -o size=8m none {disk} || exit 77\n"
      "{command} {disk}/saved > {out} 2> {error} & job=$!\n"
      "within() {{ until eval \"$1\"; do kill -0 $job || exit 3; sleep 0.05; done; }}\n"
      "within 'grep -q ^checkpoint: {out}'\n"
      "head -c 9000000 /dev/zero > {disk}/ballast 2> /dev/null\n"
      "within 'grep -q \"No space left\" {error}'\n"
      "cp -r {disk}/saved {kept} 2> /dev/null\n"
      "before=$({steps})\n"
      "within 'test $({steps}) -gt $((before + 5))'\n"
      "rm {disk}/ballast; announced=$(grep -c ^checkpoint: {out})\n"
      "within 'test $(grep -c ^checkpoint: {out}) -gt $announced'\n"
      "kill -TERM $job; wait $job; code=$?; ls -A {disk}/saved; exit $code\n",
      fmt::arg("disk", disk), fmt::arg("command", fmt::join(launch({"--nproc-per-node=2"}, training), " ")),
      fmt::arg("out", out), fmt::arg("error", error), fmt::arg("kept", directory.file("kept")),
      fmt::arg("steps", steps));
  Job job({"/usr/bin/unshare", "-Urm", "/bin/sh", "-c", script}, clean());
  const auto status = job.wait(seconds(60));
  if (status == launcher::ExitStatus{.code = 77} || job.error().find("unshare failed") != std::string::npos) {
    WARN("skipped: no user namespace with a mount of its own here: " << job.error());
    return;
  }
  INFO(job.error() << read_file(out) << read_file(error));
  REQUIRE(status);
  CHECK(status->shell_code() == 143);
  CHECK_THAT(read_file(error), Contains("stopped by SIGTERM, clean") && Contains("no checkpoint of step ") &&
                                   Contains("No space left on device"));
  CHECK_THAT(job.out(), Contains("latest") && !Contains(".saving"));
  Job resumed(launch({"--nproc-per-node=1"}, tiny({"--steps", "1000000", "--max-seconds", "1", "--checkpoint-dir",
                                                   directory.file("kept"), "--checkpoint-every", "0"})),
              clean());
  CHECK(resumed.wait(seconds(30)) == launcher::ExitStatus{});
  CHECK_THAT(resumed.out(), Contains("resumed after step "));
}
