// The command line as its users type it (C30), and --explain.
#include <filesystem>
#include <fstream>
#include <map>

#include "tests/catch.hpp"
#include "tests/scenario/dtrun_job.hpp"

using namespace dtrun;
using namespace dtrun::tests;
using namespace std::chrono_literals;
using launcher::ExitStatus;
using Words = std::vector<std::string>;

namespace {

struct Outcome {
  int code = -1;
  std::string out;
  std::string error;
};

Outcome run(Words words, Words environment = {}) {
  words.insert(words.begin(), kDtrun);
  Job job(words, {.environment = std::move(environment)});
  const auto status = job.wait(10s);
  return {status ? status->shell_code() : -1, job.out(), job.error()};
}

std::string program_that_shows_its_arguments(const TempDirectory& directory) {
  const auto path = directory.file("prog");
  std::ofstream(path) << "#!/bin/sh\necho \"$RANK of $WORLD_SIZE: $*\"\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

}  // namespace

TEST_CASE("the program's arguments are its own (C30)") {
  const TempDirectory directory;
  const auto program = program_that_shows_its_arguments(directory);
  const auto outcome = run({"--log-prefix=", "--nproc-per-node=2", program, "--mo", "1", "--log", "x", "--r", "3", "-n",
                            "7", "--", "--help", "--explain"});
  CHECK(outcome.code == 0);
  for (const auto* rank : {"0", "1"})
    CHECK_THAT(outcome.out,
               Catch::Contains(std::string(rank) + " of 2: --mo 1 --log x --r 3 -n 7 -- --help --explain"));
  CHECK(outcome.error.empty());
}

TEST_CASE("misspelt and abbreviated options are refused with a suggestion, the last of two wins (C30)") {
  const TempDirectory directory;
  const auto program = program_that_shows_its_arguments(directory);
  for (const auto& [word, meant] : {std::pair<std::string, std::string>{"--nproc-per-nod=2", "--nproc-per-node"},
                                    {"--nproc=2", "--nproc-per-node"},
                                    {"--max_restart=1", "--max-restarts"},
                                    {"--red=3", "--redirects"},
                                    {"-n", "--nproc-per-node"}}) {
    const auto outcome = run({word, "2", program});
    CAPTURE(word, outcome.error);
    CHECK(outcome.code == 2);
    CHECK(outcome.out.empty());
    CHECK_THAT(outcome.error, Catch::Contains("did you mean " + meant + "?"));
    CHECK(lines_of(outcome.error).size() == 1);
  }
  const auto twice = run({"--log-prefix=", "--nproc-per-node=3", "--nproc_per_node", "1", program});
  CHECK(twice.code == 0);
  CHECK(twice.out == "0 of 1: \n");
}

TEST_CASE("explain shows the job, where each value comes from, and starts nothing (C30)") {
  const TempDirectory directory;
  const auto program = program_that_shows_its_arguments(directory);
  const auto outcome =
      run({"--explain", "--nproc_per_node=2", "--master-port=29999", "--log-dir=" + directory.file("logs"),
           "--report=" + directory.file("report"), program, "$local_rank", "a b"},
          {"PET_MAX_RESTARTS=3", "PET_ROLE=trainer", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=7", "OMP_NUM_THREADS"});
  CHECK(outcome.code == 0);
  CHECK(outcome.error.empty());
  const auto lines = lines_of(outcome.out);
  const auto has = [&](const std::string& start, const std::string& end) {
    return std::any_of(lines.begin(), lines.end(),
                       [&](const auto& line) { return line.starts_with("  " + start) && line.ends_with(end); });
  };
  CAPTURE(outcome.out);
  CHECK(has("--nproc-per-node            2 ", " command line"));
  CHECK(has("--max-restarts              3 ", " PET_MAX_RESTARTS"));
  CHECK(has("--role                      trainer ", " PET_ROLE"));
  CHECK(has("--shutdown-timeout          7 ", " TORCH_ELASTIC_SHUTDOWN_TIMEOUT"));
  CHECK(has("--rdzv-backend              static ", " default"));
  CHECK(has("command of local rank 0     ", program + " 0 'a b'"));
  CHECK(has("workers                     2", ""));
  CHECK(has("store                       127.0.0.1:29999", "for every attempt"));
  CHECK(has("from stop to SIGKILL        7 s", ""));
  for (const auto* entry : {"MASTER_ADDR=127.0.0.1", "MASTER_PORT=29999", "WORLD_SIZE=2", "ROLE_NAME=trainer",
                            "TORCHELASTIC_RUN_ID=none", "OMP_NUM_THREADS="})
    CHECK(has(entry, ""));
  CHECK(std::distance(std::filesystem::directory_iterator(directory.path()), {}) ==
        1);  // the program: nothing was made
}

TEST_CASE("NUMA binding puts each worker near its GPU, and is refused where none is to be seen") {
  const auto none = run({"--numa-binding=node", "/bin/true"}, {"CUDA_VISIBLE_DEVICES="});
  CHECK(none.code == 2);
  CHECK_THAT(none.error, Catch::Contains("--numa-binding: no GPU is to be seen"));
  // Two GPUs that only /proc knows of, in a mount namespace of its own.
  const std::string pretend =
      "mount -t tmpfs gpus /proc/driver && mkdir -p /proc/driver/nvidia/gpus/0000:0a:00.0 "
      "/proc/driver/nvidia/gpus/0000:0b:00.0 && exec \"$@\"";
  const auto with_gpus = [&](const Words& words) {
    Words argv{"/usr/bin/unshare", "-Urm", "/bin/sh", "-c", pretend, "sh"};
    argv.insert(argv.end(), words.begin(), words.end());
    return argv;
  };
  Job probe(with_gpus({"/bin/true"}));
  if (probe.wait(10s) != ExitStatus{} || !std::filesystem::exists("/sys/devices/system/node/node0/cpulist")) {
    WARN("skipped: no mount namespaces or no NUMA information here: " << probe.error());
    return;
  }
  Job job(with_gpus({kDtrun, "--log-prefix=", "--numa-binding=exclusive", "--nproc-per-node=2", "--no-python",
                     "/bin/sh", "-c", "echo $$RANK $(grep Cpus_allowed_list /proc/self/status)"}));
  const auto status = job.wait(10s);
  CAPTURE(job.out(), job.error());
  if (status == ExitStatus{.code = 2}) {
    CHECK_THAT(job.error(), Catch::Contains("1 core that may be used, for 2 GPUs"));  // a machine with one core
    return;
  }
  CHECK(status == ExitStatus{});
  std::map<char, std::string> cpus;
  for (const auto& line : lines_of(job.out())) cpus[line.at(0)] = line.substr(line.find(": ") + 2);
  REQUIRE(cpus.size() == 2);
  CHECK(cpus['0'] != cpus['1']);
}

TEST_CASE("explain ends with the errors of a run") {
  for (const Words& words : {Words{"--max-restarts=-1", "/bin/true"}, Words{}, Words{"--nproc-per-nod=1", "/bin/true"},
                             Words{"--no-python", "/nonexistent/program"}, Words{"--no-python", "/etc/passwd"},
                             Words{"no-such.py"}, Words{"--nproc-per-node=2", "--virtual-local-rank", "/bin/true"}}) {
    auto explained = words;
    explained.insert(explained.begin(), "--explain");
    const auto once = run(words, {"CUDA_VISIBLE_DEVICES=3"}), shown = run(explained, {"CUDA_VISIBLE_DEVICES=3"});
    CAPTURE(words, once.error, shown.error);
    CHECK(shown.code == once.code);
    CHECK(shown.code != 0);
    CHECK(shown.out.empty());
    CHECK(shown.error.starts_with("dtrun: error: "));
  }
}

TEST_CASE("bash completes dtrun's options and their values, and files after the program") {
  // Words as bash hands them over, the last one being typed; dtrun's answer in one line.
  const std::string script =
      "source <(" + kDtrun + " --print-completion bash)\n" +
      "try() { COMP_WORDS=(dtrun \"$@\"); COMP_CWORD=$#; COMPREPLY=(); _dtrun; echo \"${COMPREPLY[*]}\"; }\n";
  for (const auto& [words, expected] : {std::pair<std::string, std::string>{"--nproc-per", "--nproc-per-node"},
                                        {"--stdin = r", "rank0"},
                                        {"--numa-binding ''", "node socket exclusive core-complex"},
                                        {"--nnodes = 2 --max-r", "--max-restarts"},
                                        {"-t 3 --tee", "--tee"},
                                        {"-m /etc/passw", "/etc/passwd"},
                                        {"--role x /etc/passw", "/etc/passwd"},
                                        {"--log-dir /etc/passw", "/etc/passwd"},
                                        {"prog --nproc-per", ""}}) {
    Job job({"/bin/bash", "-c", script + "try " + words});
    CAPTURE(words, job.error());
    CHECK(job.wait(10s) == ExitStatus{});
    const auto lines = lines_of(job.out());
    REQUIRE(lines.size() == 1);
    CHECK(lines[0].starts_with(expected));
    if (expected.empty()) CHECK(lines[0].empty());
  }
  CHECK_THAT(run({"--print-completion=tcsh"}).out, Catch::StartsWith("complete dtrun 'n/--stdin/"));
  CHECK_THAT(run({"--print-completion", "zsh"}).out, Catch::StartsWith("autoload") && Catch::Contains("complete -F"));
}

TEST_CASE("the man page has every option and no stray request") {
  const auto help = run({"--help"}), page = run({"--man"});
  CHECK(page.code == 0);
  CHECK(help.code == 0);
  int options = 0;
  for (const auto& line : lines_of(help.out)) options += line.starts_with("  -") ? 1 : 0;
  int entries = 0;
  for (const auto& line : lines_of(page.out)) {
    entries += line == ".TP" ? 1 : 0;
    CAPTURE(line);
    if (line.starts_with('.'))
      CHECK_THAT(line, Catch::Matches("\\.(TH|SH|SS|TP|B|br|nf|fi)( .*)?"));
    else
      CHECK(line.find(" -") == std::string::npos);  // roff would print a hyphen that nobody can copy
  }
  CHECK(entries == options);
}
