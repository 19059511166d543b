#include "tests/catch.hpp"

#include <fmt/format.h>

#include <map>
#include <set>

#include "launcher/config/batch_system.hpp"
#include "rendezvous/base/error.hpp"

using namespace dtrun;
using namespace dtrun::launcher;

namespace {

using Variables = std::map<std::string, std::string>;

// What srun gives to the task of node 1 of two, one task on each.
const Variables kStep = {
    {"SLURM_JOB_ID", "4242"},
    {"SLURM_STEP_ID", "3"},
    {"SLURM_JOB_NUM_NODES", "4"},
    {"SLURM_STEP_NUM_NODES", "2"},
    {"SLURM_STEP_NUM_TASKS", "2"},
    {"SLURM_STEP_NODELIST", "gpu[009-010]"},
    {"SLURM_NODEID", "1"},
    {"SLURMD_NODENAME", "gpu010"},
    {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
    {"SLURM_JOB_NODELIST", "gpu[007-010]"},
};
// A batch script of a job of two nodes.
const Variables kBatch = {{"SLURM_JOB_ID", "4242"},
                          {"SLURM_JOB_NUM_NODES", "2"},
                          {"SLURM_NNODES", "2"},
                          {"SLURM_NODEID", "0"},
                          {"SLURM_PROCID", "0"},
                          {"SLURM_LOCALID", "0"},
                          {"SLURM_TASKS_PER_NODE", "1(x2)"},
                          {"SLURM_JOB_NODELIST", "gpu[009-010]"}};
const Variables kPod = {{"JOB_COMPLETION_INDEX", "2"}, {"HOSTNAME", "train-a-2"}};

Variables with(Variables base, const Variables& changes) {
  for (const auto& [name, value] : changes) base[name] = value;
  return base;
}

Variables without(Variables base, const std::string& name) {
  base.erase(name);
  return base;
}

struct Given {
  std::set<std::string, std::less<>> options = {};
  int nodes = 1;
  std::string backend = "static";
  bool standalone = false;
};

// "option=value(source) ...", warnings with a "!" in front, or the refusal.
std::string resolved(const Variables& variables, const Given& given = {}) {
  LaunchConfig config;
  config.nodes = {given.nodes, given.nodes};
  config.rendezvous.backend = given.backend;
  config.rendezvous.standalone = given.standalone;
  const auto is_given = [&](std::string_view option) { return given.options.contains(option); };
  const auto look_up = [&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  std::string text;
  try {
    const auto result = batch_values(config, is_given, look_up);
    for (const auto& value : result.values)
      text += fmt::format("{}{}={}({})", text.empty() ? "" : " ", value.option, value.text, value.source);
    for (const auto& warning : result.warnings) text += "!" + warning;
  } catch (const UsageError& error) {
    text = error.what();
  }
  return text;
}

constexpr auto kNodes = "nnodes=2(SLURM_STEP_NUM_NODES) ";
constexpr auto kRank = "node-rank=1(SLURM_NODEID) ";
constexpr auto kId = "rdzv-id=4242.3(SLURM_JOB_ID)";
constexpr auto kEndpoint = " rdzv-endpoint=gpu009:27242(SLURM_STEP_NODELIST) rdzv-backend=c10d(SLURM_STEP_NODELIST)";

}  // namespace

TEST_CASE("a SLURM step of several nodes is a job of several nodes") {
  CHECK(resolved(kStep) == std::string(kNodes) + kRank + kId + kEndpoint);
  CHECK(resolved(without(kStep, "SLURMD_NODENAME")) == std::string(kNodes) + kRank + kId + kEndpoint);
  CHECK(resolved(with(kStep, {{"SLURM_JOB_ID", "4294967294"}, {"SLURM_STEP_ID", "99999"}})) ==
        std::string(kNodes) + kRank +
            "rdzv-id=4294967294.99999(SLURM_JOB_ID) rdzv-endpoint=gpu009:26294(SLURM_STEP_NODELIST) "
            "rdzv-backend=c10d(SLURM_STEP_NODELIST)");
}

TEST_CASE("what was given stays as it is in a SLURM step") {
  CHECK(resolved(kStep, {.options = {"nnodes"}, .nodes = 2}) == std::string(kRank) + kId + kEndpoint);
  CHECK(resolved(kStep, {.options = {"rdzv-endpoint"}}) == std::string(kNodes) + kRank + kId);
  CHECK(resolved(kStep, {.options = {"master-addr"}}) == std::string(kNodes) + kRank + kId);
  CHECK(resolved(kStep, {.options = {"master-port"}}) ==
        std::string(kNodes) + kRank + kId + " master-addr=gpu009(SLURM_STEP_NODELIST)");
  CHECK(resolved(kStep, {.options = {"rdzv-endpoint", "master-port"}}) == std::string(kNodes) + kRank + kId);
  CHECK(resolved(kStep, {.options = {"rdzv-id", "rdzv-backend", "node-rank"}}) ==
        std::string(kNodes) + "rdzv-endpoint=gpu009:27242(SLURM_STEP_NODELIST)");
  CHECK(resolved(kStep, {.options = {"master-port", "rdzv-backend"}, .backend = "c10d"}) ==
        std::string(kNodes) + kRank + kId + " rdzv-endpoint=gpu009:27242(SLURM_STEP_NODELIST)");
  CHECK(resolved(kStep, {.options = {"nnodes"}, .nodes = 1}).empty());
  CHECK(resolved(kStep, {.options = {}, .standalone = true}).empty());
}

TEST_CASE("SLURM jobs that are no job of several nodes") {
  CHECK(resolved({}).empty());
  CHECK(resolved(with(kStep, {{"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_STEP_NODELIST", "gpu010"}, {"SLURM_NODEID", "0"}}))
            .empty());
  // Four jobs of their own on one node.
  CHECK(resolved(with(kStep, {{"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_STEP_NUM_TASKS", "4"}})).empty());
  CHECK(resolved(with(kBatch, {{"SLURM_JOB_NUM_NODES", "1"}})).empty());

  const std::string only_here =
      "!this SLURM job has 2 nodes and dtrun uses only this one: srun --ntasks-per-node=1 dtrun ... runs on all of "
      "them, --nnodes=1 says that one is meant";
  CHECK(resolved(kBatch) == only_here);
  CHECK(resolved(without(kBatch, "SLURM_JOB_NUM_NODES")) == only_here);
  CHECK(resolved(kBatch, {.options = {"nnodes"}, .nodes = 1}).empty());
  CHECK(resolved(kBatch, {.options = {"nnodes"}, .nodes = 2}).empty());
  CHECK(resolved(kBatch, {.options = {}, .standalone = true}).empty());
  // The batch script's own step, and the shell that salloc opens.
  for (const auto* id : {"4294967291", "4294967290"}) {
    CHECK(resolved(with(kBatch, {{"SLURM_STEP_ID", id}, {"SLURM_STEP_NUM_NODES", "1"}})) == only_here);
  }
}

TEST_CASE("several tasks on a node are refused, unless everything is given") {
  const auto four = with(kStep, {{"SLURM_STEP_NUM_TASKS", "4"}});
  CHECK(resolved(four) ==
        "[cli] srun started 4 tasks on 2 nodes (SLURM_STEP_NUM_TASKS), expected one dtrun on each node: use srun "
        "--ntasks-per-node=1 and dtrun --nproc-per-node=N, or --standalone for a job of its own in every task");
  CHECK(resolved(four, {.options = {"nnodes", "rdzv-endpoint"}, .nodes = 4}).empty());
  CHECK(resolved(four, {.options = {}, .standalone = true}).empty());
}

TEST_CASE("SLURM variables of another step are not used, nonsense is refused") {
  CHECK(resolved(with(kStep, {{"SLURMD_NODENAME", "cpu1"}}))
            .starts_with("!the SLURM_ variables describe another step than the one that runs here (node 1 of "
                         "SLURM_STEP_NODELIST is not cpu1)"));
  CHECK(resolved(with(kStep, {{"SLURM_NODEID", "2"}})).starts_with("!the SLURM_ variables describe another step"));
  CHECK(resolved(without(kStep, "SLURM_NODEID")).starts_with("!the SLURM_ variables describe another step"));
  CHECK(resolved(with(kStep, {{"SLURM_STEP_NODELIST", "gpu[009-011]"}}))
            .starts_with("[cli] SLURM_STEP_NODELIST names 3 nodes, but SLURM_STEP_NUM_NODES is 2"));
  CHECK(
      resolved(with(kStep, {{"SLURM_STEP_NODELIST", "gpu[009-"}})).starts_with("[cli] SLURM_STEP_NODELIST is \"gpu["));
  CHECK(resolved(without(kStep, "SLURM_STEP_NODELIST")).starts_with("[cli] SLURM_STEP_NODELIST is \"\""));
  for (const auto* variable :
       {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS", "SLURM_NODEID"}) {
    for (const auto* value : {"", "x", "2x", "-1", "99999999999999999999"}) {
      CAPTURE(variable, value);
      CHECK(resolved(with(kStep, {{variable, value}})).starts_with(fmt::format("[cli] {} is \"{}\"", variable, value)));
    }
  }
}

TEST_CASE("a pod of an indexed Job knows everything but the number of nodes") {
  CHECK(resolved(kPod).empty());  // pods that have nothing to do with each other
  CHECK(resolved(kPod, {.options = {"nnodes"}, .nodes = 1}).empty());
  CHECK(resolved(kPod, {.options = {"nnodes"}, .nodes = 4}) ==
        "node-rank=2(JOB_COMPLETION_INDEX) rdzv-id=train-a(HOSTNAME) rdzv-endpoint=train-a-0.train-a:29400(HOSTNAME) "
        "rdzv-backend=c10d(HOSTNAME)");
  CHECK(resolved(kPod, {.options = {"nnodes", "rdzv-endpoint", "rdzv-backend"}, .nodes = 4}) ==
        "node-rank=2(JOB_COMPLETION_INDEX) rdzv-id=train-a(HOSTNAME)");
  // Kubeflow's Trainer gives everything.
  CHECK(resolved(kPod, {.options = {"nnodes", "node-rank", "master-addr", "master-port", "rdzv-id"}, .nodes = 4})
            .empty());
  CHECK(resolved(kPod, {.options = {"nnodes"}, .nodes = 4, .standalone = true}).empty());
  for (const auto* name : {"node7", "train-a-3", "-2", ""}) {
    CHECK(resolved(with(kPod, {{"HOSTNAME", name}}), {.options = {"nnodes"}, .nodes = 4}) ==
          "node-rank=2(JOB_COMPLETION_INDEX)");
  }
  CHECK(resolved(with(kPod, {{"JOB_COMPLETION_INDEX", "x"}}), {.options = {"nnodes"}, .nodes = 4})
            .starts_with("[cli] JOB_COMPLETION_INDEX is \"x\""));
}
