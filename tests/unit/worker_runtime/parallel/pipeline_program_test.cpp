// Programs of pipeline stages: how units are split, what a stage does in which order, and that check() notices what is
// wrong.
#include <algorithm>
#include <chrono>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/unit/worker_runtime/parallel/programs.hpp"
#include "tests/unit/worker_runtime/parallel/symbolic_run.hpp"
#include "worker_runtime/parallel/calls.hpp"
#include "worker_runtime/parallel/check.hpp"
#include "worker_runtime/parallel/plan_text.hpp"
#include "worker_runtime/parallel/schedule.hpp"
#include "worker_runtime/parallel/simulation.hpp"
#include "worker_runtime/parallel/stages.hpp"

using namespace dtrun::runtime;
using namespace dtrun::runtime::testing;
using Catch::Contains;

namespace {

// embedding (table, positions), blocks of a matrix and a bias, head (norm, tied table).
ModelDescription chain(int blocks, bool tied = true) {
  ModelDescription model;
  model.parameters = {{"table", 100}, {"positions", 20}};
  model.units = {{"embedding", {0, 1}, 0, 0, {2, 8}}};
  for (int i = 0; i < blocks; ++i) {
    const int first = static_cast<int>(model.parameters.size());
    const auto name = "h." + std::to_string(i);
    model.parameters.push_back({name + ".w", 40});
    model.parameters.push_back({name + ".b", 4});
    model.units.push_back({name, {first, first + 1}, 3, 0, {2, 8}});
  }
  const int norm = static_cast<int>(model.parameters.size());
  model.parameters.push_back({"norm", 4});
  if (!tied) model.parameters.push_back({"out", 100});
  model.units.push_back({"head", {norm, tied ? 0 : norm + 1}, 2, 0, {1}});
  return model;
}

ParallelConfig staged(int pp, int micro_batches, Schedule schedule, int virtual_stages = 1) {
  ParallelConfig config;
  config.axes.pp = pp;
  config.micro_batches = micro_batches;
  config.bucket_bytes = config.first_bucket_bytes = 64;
  config.schedule = schedule;
  config.virtual_stages = virtual_stages;
  return config;
}

std::vector<std::string> labels(const Program& program) {
  std::vector<std::string> result;
  for (const auto& action : program.step) result.push_back(program.label(action));
  return result;
}

std::vector<std::string> firsts(const ModelDescription& model, const ParallelConfig& config) {
  std::vector<std::string> result;
  for (const auto& stage : plan_stages(model, config))
    result.push_back(model.units[static_cast<std::size_t>(stage.first)].name);
  return result;
}

std::vector<ParallelConfig> all_schedules(int pp, int micro_batches, int virtual_stages) {
  return {staged(pp, micro_batches, Schedule::gpipe), staged(pp, micro_batches, Schedule::one_f_one_b),
          staged(pp, micro_batches, Schedule::interleaved, virtual_stages)};
}

}  // namespace

TEST_CASE("stages are split so that the largest is as small as can be, or as told") {
  auto config = staged(2, 2, Schedule::gpipe);
  CHECK(firsts(chain(4), config) == std::vector<std::string>{"embedding", "h.2"});
  CHECK(firsts(chain(5), config) == std::vector<std::string>{"embedding", "h.3"});
  config.axes.pp = 6;
  CHECK(firsts(chain(4), config) == std::vector<std::string>{"embedding", "h.0", "h.1", "h.2", "h.3", "head"});
  config.axes.pp = 3;
  config.split = {"h.0", "head"};
  CHECK(firsts(chain(4), config) == std::vector<std::string>{"embedding", "h.0", "head"});
  auto unknown_costs = chain(6);
  for (auto& unit : unknown_costs.units) unit.forward_flops = 0;
  CHECK(firsts(unknown_costs, staged(4, 1, Schedule::gpipe)) ==
        std::vector<std::string>{"embedding", "h.1", "h.3", "h.5"});
}

TEST_CASE("stages that cannot be are refused with what can be") {
  const auto refused = [](const ParallelConfig& config, const std::string& text) {
    CHECK_THROWS_AS(compile(chain(4), config, 0), dtrun::UsageError);
    CHECK_THROWS_WITH(compile(chain(4), config, 0), Contains(text));
  };
  refused(staged(7, 7, Schedule::gpipe), "7 stages (pp=7) for a model of 6 units, expected at most 6");
  refused(staged(4, 4, Schedule::interleaved, 2), "8 stages (pp=4, 2 stages on each rank)");
  refused(staged(2, 3, Schedule::interleaved, 2), "3 micro-batches, the schedule interleaved needs a multiple of pp=2");
  refused(staged(2, 2, Schedule::interleaved), "expected at least 2");
  refused(staged(2, 2, Schedule::gpipe, 2), "expected the schedule interleaved");
  auto config = staged(2, 2, Schedule::gpipe);
  config.split = {"h.9"};
  refused(config, "there is no unit \"h.9\", expected some of embedding, h.0");
  config.split = {"h.0", "h.1"};
  refused(config, "2 stages need the 1 unit with");
  config.split = {"embedding"};
  refused(config, "leaves the stage before it without units");
  config = staged(1, 2, Schedule::gpipe);
  config.split = {"h.0"};
  refused(config, "stages need the axis pp");
  const auto wide = staged(17, 34, Schedule::interleaved, 2);
  CHECK_THROWS_WITH(compile(chain(32), wide, 0),
                    Contains("pp=17 and table shared by two stages, expected pp=16 at most"));
  CHECK(check(compile_all(chain(32, false), wide)).ok());
  CHECK(check(compile_all(chain(30), staged(16, 32, Schedule::interleaved, 2))).ok());
  auto shared = chain(4);
  shared.units[2].parameters.push_back(0);
  CHECK_THROWS_WITH(compile(shared, staged(3, 3, Schedule::gpipe), 0), Contains("table is used by the stages 0, 1, 2"));
}

TEST_CASE("1F1B of two stages: the order of actions, with the tied table's gradient on its way to its owner") {
  const auto model = chain(2);
  const auto config = staged(2, 2, Schedule::one_f_one_b);
  const std::vector<std::string> first = {"FORWARD embedding micro-batch 0",
                                          "FORWARD h.0 micro-batch 0",
                                          "SEND activation of h.0 micro-batch 0 to pp 1",
                                          "FORWARD embedding micro-batch 1",
                                          "FORWARD h.0 micro-batch 1",
                                          "SEND activation of h.0 micro-batch 1 to pp 1",
                                          "RECV tied gradient of table micro-batch 0 from pp 1",
                                          "RECV gradient of h.0 micro-batch 0 from pp 1",
                                          "WAIT gradient of h.0 micro-batch 0",
                                          "WAIT tied gradient of table micro-batch 0",
                                          "BACKWARD h.0 micro-batch 0",
                                          "TAKE tied gradient of table micro-batch 0",
                                          "BACKWARD embedding micro-batch 0",
                                          "RECV tied gradient of table micro-batch 1 from pp 1",
                                          "RECV gradient of h.0 micro-batch 1 from pp 1",
                                          "WAIT gradient of h.0 micro-batch 1",
                                          "WAIT tied gradient of table micro-batch 1",
                                          "BACKWARD h.0 micro-batch 1",
                                          "ACCUMULATE h.0 micro-batch 1",
                                          "TAKE tied gradient of table micro-batch 1",
                                          "BACKWARD embedding micro-batch 1",
                                          "ACCUMULATE embedding micro-batch 1"};
  const auto found = labels(compile(model, config, 0));
  std::vector<std::string> without;
  std::ranges::copy_if(found, std::back_inserter(without), [](const auto& label) {
    return !label.starts_with("REDUCE") && !label.ends_with("taken by pp 1") && !label.starts_with("WAIT bucket") &&
           label != "WAIT metrics" && label != "CLIP" && label != "OPTIMIZE" &&
           label.find("tied value") == std::string::npos;
  });
  CHECK(without == first);
  CHECK(found.back() == "WAIT tied value of table to be taken by pp 1");
  CHECK(labels(compile(model, config, 1)).back() == "WAIT tied value of table");
}

TEST_CASE("programs of every schedule are right, and all come to the gradients of one process") {
  for (const bool tied : {true, false}) {
    for (const bool recompute : {false, true}) {
      for (auto config : all_schedules(3, 6, 2)) {
        config.recompute_blocks = recompute;
        const auto programs = compile_all(chain(5, tied), config);
        CAPTURE(tied, recompute, name_of(config.schedule));
        CHECK(check(programs).problems == std::vector<std::string>());
        auto single = config;
        single.axes.pp = 1;
        single.virtual_stages = 1;
        const auto alone_programs = compile_all(chain(5, tied), single);
        const auto alone = SymbolicRun(alone_programs, 1).run();
        REQUIRE(alone);
        const auto found = SymbolicRun(programs, 1).run();
        REQUIRE(found);
        for (const auto& [place, value] : *found) {
          if (place.second >= 0) CHECK(value == alone->at({0, place.second}));
        }
      }
    }
  }
}

TEST_CASE("a stage holds as many micro-batches as its schedule promises, and waits as long as the formula says") {
  for (const int pp : {2, 4}) {
    auto model = chain(pp - 2);  // one unit for each stage, of equal cost
    for (auto& unit : model.units) unit.forward_flops = 1;
    for (const auto schedule : {Schedule::gpipe, Schedule::one_f_one_b}) {
      const int m = 8;
      const auto result = simulate(compile_all(model, staged(pp, m, schedule)));
      CHECK(result.problems.empty());
      CHECK(result.bubble() == Approx(static_cast<double>(pp - 1) / (m + pp - 1)));
      for (int stage = 0; stage < pp; ++stage) {
        CHECK(result.peak_in_flight[static_cast<std::size_t>(stage)] == (schedule == Schedule::gpipe ? m : pp - stage));
      }
    }
  }
  auto model = chain(6);  // two units for each of four ranks
  for (auto& unit : model.units) unit.forward_flops = 1;
  const auto plain = simulate(compile_all(model, staged(4, 8, Schedule::one_f_one_b))).bubble();
  CHECK(simulate(compile_all(model, staged(4, 8, Schedule::interleaved, 2))).bubble() < 0.7 * plain);
}

TEST_CASE(
    "what is sent is predicted: an activation and a gradient for each boundary and micro-batch, and the tied table") {
  const auto model = chain(4);
  const auto config = staged(3, 4, Schedule::one_f_one_b);
  std::uint64_t all = 0;
  for (int rank = 0; rank < 3; ++rank) all += predict(compile(model, config, rank)).step_bytes.at("pp");
  const std::uint64_t activation = 16 * 4, table = 100 * 4;
  CHECK(all == 2 * 2 * 4 * activation + 4 * table + table);
  CHECK(predict(compile(chain(4, false), config, 1)).step_bytes.at("pp") == 2 * 4 * activation);
  CHECK(predict(compile(model, config, 0)).setup_bytes.at("pp") == table);
}

TEST_CASE("programs beyond this machine are checked in seconds") {
  const auto start = std::chrono::steady_clock::now();
  for (auto config : all_schedules(16, 64, 2)) {
    config.axes.dp = 32;
    CAPTURE(name_of(config.schedule));
    CHECK(check(compile_all(chain(62), config)).problems == std::vector<std::string>());
  }
  auto split = staged(16, 64, Schedule::one_f_one_b);
  split.axes.fsdp = 32;
  CHECK(check(compile_all(chain(62), split)).ok());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  CHECK(seconds.count() < 60);
}

TEST_CASE("stages whose parameters are split: every schedule, setting and rank") {
  for (auto config : all_schedules(2, 4, 2)) {
    for (const bool reshard : {true, false}) {
      for (const bool prefetch : {true, false}) {
        for (const bool recompute : {true, false}) {
          config.axes.fsdp = 3;
          config.reshard_after_forward = reshard;
          config.prefetch = prefetch;
          config.recompute_blocks = recompute;
          CAPTURE(name_of(config.schedule), reshard, prefetch, recompute);
          CHECK(check(compile_all(chain(4), config)).problems == std::vector<std::string>());
        }
      }
    }
  }
}

TEST_CASE("an action that one stage drops or does twice is noticed") {
  for (auto config : all_schedules(2, 4, 2)) {
    for (const int fsdp : {1, 2}) {
      config.axes.fsdp = fsdp;
      const auto programs = compile_all(chain(4), config);
      for (std::size_t rank = 0; rank < programs.size(); ++rank) {
        for (std::size_t i = 0; i < programs[rank].step.size(); ++i) {
          CAPTURE(name_of(config.schedule), fsdp, rank, programs[rank].label(programs[rank].step[i]));
          const auto at = static_cast<std::ptrdiff_t>(i);
          auto dropped = programs;
          dropped[rank].step.erase(dropped[rank].step.begin() + at);
          CHECK_FALSE(check(dropped).ok());
          auto doubled = programs;
          auto copy = doubled[rank].step[i];
          copy.id = 100'000;
          doubled[rank].step.insert(doubled[rank].step.begin() + at, copy);
          CHECK_FALSE(check(doubled).ok());
        }
      }
    }
  }
}

TEST_CASE("of all swaps and shifts of actions only those that change nothing are accepted") {
  for (auto config : all_schedules(2, 4, 2)) {
    for (const int dp : {1, 2}) {
      config.axes.dp = dp;
      config.recompute_blocks = dp == 2;
      const auto programs = compile_all(chain(2), config);
      const auto wanted = SymbolicRun(programs, 1).run();
      REQUIRE(wanted);
      std::mt19937 random(3);
      int accepted = 0, tried = 0;
      for (int round = 0; round < 1500; ++round) {
        auto mutated = programs;
        auto& step = mutated[random() % mutated.size()].step;
        for (unsigned n = 1 + random() % 3; n > 0; --n) {
          const auto i = random() % step.size(), j = random() % step.size();
          switch (random() % 4) {
            case 0:
              std::swap(step[i], step[j]);
              break;
            case 1:
              std::swap(step[i], step[(i + 1) % step.size()]);
              break;
            case 2: {  // shift
              const auto moved = step[i];
              step.erase(step.begin() + static_cast<std::ptrdiff_t>(i));
              step.insert(step.begin() + static_cast<std::ptrdiff_t>(std::min(j, step.size())), moved);
              break;
            }
            default:
              std::swap(step[i].buffer, step[j].buffer);
              break;
          }
        }
        ++tried;
        if (!check(mutated).ok()) continue;
        ++accepted;
        for (const unsigned seed : {1U, 2U, 3U}) {
          CAPTURE(name_of(config.schedule), dp, round, seed);
          CHECK(SymbolicRun(mutated, seed).run() == wanted);
        }
      }
      CHECK(accepted > 0);
      CHECK(accepted < tried / 2);
    }
  }
}

TEST_CASE("ranks that share layers and run units in different orders are named") {
  auto config = staged(2, 4, Schedule::gpipe);
  config.axes.tp = 2;
  auto programs = compile_all(chain(2), config);
  REQUIRE(check(programs).ok());
  auto other = config;
  other.schedule = Schedule::one_f_one_b;
  for (const std::size_t rank : {1U, 3U}) {  // both stages: messages fit
    programs[rank] = compile(chain(2), other, static_cast<int>(rank));
    programs[rank].config = config;
  }
  const auto report = check(programs);
  REQUIRE_FALSE(report.ok());
  CHECK_THAT(report.problems[0], Contains("rank 1: runs BACKWARD h.0 micro-batch 0 where rank 0 runs FORWARD "
                                          "embedding micro-batch 2"));
}

TEST_CASE("with sequence parallelism only the owner of a tied parameter sums its gradient over tp") {
  auto config = staged(2, 2, Schedule::one_f_one_b);
  config.axes.tp = 2;
  config.sequence_parallel = true;
  for (const int fsdp : {1, 2}) {
    config.axes.fsdp = fsdp;
    const auto programs = compile_all(chain(2), config);
    CHECK(check(programs).ok());
    std::vector<std::int64_t> summed;
    for (const auto& program : {programs.front(), programs.back()}) {
      for (const auto& call : calls_of(program, program.step)) {
        if (call.action->kind == ActionKind::reduce_partial) summed.push_back(call.numel);
      }
    }
    // Table, positions, a block; block, norm.
    CHECK(summed == std::vector<std::int64_t>{(100 + 20 + 44) / fsdp, (44 + 4) / fsdp});
  }
}

TEST_CASE("stages that wait for each other in a circle are named") {
  // The first stage waits for the gradient of what it has not sent.
  auto programs = compile_all(chain(2), staged(2, 1, Schedule::one_f_one_b));
  auto& step = programs[0].step;
  const auto send = std::ranges::find(step, ActionKind::send, &Action::kind);
  const auto wait = std::find_if(step.begin(), step.end(), [](const Action& a) {
    return a.kind == ActionKind::wait && a.payload == Payload::activation;
  });
  std::rotate(send, send + 1, wait);
  const auto result = simulate(programs);
  REQUIRE_FALSE(result.problems.empty());
  CHECK_THAT(result.problems.back(), Contains("waits for ever"));
}
