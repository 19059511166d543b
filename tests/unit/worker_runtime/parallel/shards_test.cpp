// Programs with split parameters: how they are split, what the program does in which order, and that check() notices
// what is wrong. The judge of mutations is a second reading of a program: it follows values and gradients as text.
#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "tests/catch.hpp"
#include "tests/unit/worker_runtime/parallel/programs.hpp"
#include "worker_runtime/core/memory_account.hpp"
#include "worker_runtime/parallel/check.hpp"
#include "worker_runtime/parallel/plan_text.hpp"
#include "worker_runtime/parallel/shard_layouts.hpp"

using namespace dtrun::runtime;
using namespace dtrun::runtime::testing;

namespace {

ParallelConfig split(int ranks, int micro_batches, bool reshard = true, bool prefetch = true) {
  ParallelConfig config;
  config.axes.fsdp = ranks;
  config.micro_batches = micro_batches;
  config.reshard_after_forward = reshard;
  config.prefetch = prefetch;
  return config;
}

ParallelConfig hybrid(int replicas, int parts, int micro_batches, int ways = 0) {
  auto config = split(parts, micro_batches);
  config.axes.dp = replicas;
  config.reshard_ways = ways;
  return config;
}

ParallelConfig zero(int stage, int ranks, int micro_batches) {
  ParallelConfig config;
  config.axes.dp = ranks;
  config.zero = stage;
  config.micro_batches = micro_batches;
  return config;
}

std::vector<ParallelConfig> small_worlds() {
  return {split(2, 1),        split(2, 3),   split(3, 2, false), hybrid(2, 2, 1), hybrid(2, 2, 2), hybrid(1, 4, 1, 2),
          hybrid(2, 4, 2, 2), zero(1, 2, 1), zero(1, 3, 3),      zero(2, 2, 1),   zero(2, 3, 3)};
}

std::vector<std::string> labels(const Program& program) {
  std::vector<std::string> result;
  for (const auto& action : program.step) result.push_back(program.label(action));
  return result;
}

// What the optimizer sees of each parameter on this rank, in the order of the additions; empty when the step cannot
// run.
std::map<int, std::string> simulate(const Program& program) {
  const auto& model = program.model;
  const int units = static_cast<int>(model.units.size());
  const bool rests_whole = program.config.zero > 0, sums_once = program.config.zero == 1;
  std::set<int> whole, coming, owners;
  std::map<int, int> kept;
  std::map<int, std::string> gradient, part, sent;
  std::map<int, int> sent_micro_batch, forward, backward, sums;
  std::map<int, bool> loss;
  std::string scratch;
  int scratch_owner = -1;
  bool clipped = false;
  const auto owner_of = [&](int buffer) {
    return model.first_use(program.buffers[static_cast<std::size_t>(buffer)].slots.front().parameter);
  };
  const auto usable = [&](int unit) {
    return std::ranges::all_of(model.units[static_cast<std::size_t>(unit)].parameters,
                               [&](int p) { return whole.contains(model.first_use(p)); });
  };
  for (int unit = 0; unit < units; ++unit)
    if (!program.shards[static_cast<std::size_t>(unit)].slots.empty()) owners.insert(unit);
  if (rests_whole) {
    whole = owners;
    if (program.setup.size() != 2 * owners.size()) return {};
  }
  bool updated = false;
  for (const auto& a : program.step) {
    if (updated && a.kind != ActionKind::unshard && a.kind != ActionKind::wait) return {};
    switch (a.kind) {
      case ActionKind::unshard:
        if (whole.contains(a.unit) || kept[a.unit] != a.ways || !coming.insert(a.unit).second) return {};
        break;
      case ActionKind::reshard:
        if (whole.erase(a.unit) == 0 || rests_whole) return {};
        kept[a.unit] = a.ways;
        break;
      case ActionKind::forward:
        if (forward[a.micro_batch]++ != a.unit || !usable(a.unit)) return {};
        break;
      case ActionKind::loss:
        if (forward[a.micro_batch] != units || loss[a.micro_batch] || sums.contains(-1)) return {};
        loss[a.micro_batch] = true;
        break;
      case ActionKind::backward:
        if (!loss[a.micro_batch] || backward[a.micro_batch]++ != units - 1 - a.unit || !usable(a.unit)) return {};
        for (const int p : model.units[static_cast<std::size_t>(a.unit)].parameters) {
          if (sent.contains(model.first_use(p))) return {};  // still being read
          if (sums_once && sums.contains(model.first_use(p))) return {};
          gradient[p] += "m" + std::to_string(a.micro_batch) + "u" + std::to_string(a.unit) + " ";
        }
        break;
      case ActionKind::reduce: {
        if (a.buffer == program.metrics_buffer()) {
          if (sums[-1]++ != 0 || static_cast<int>(loss.size()) != program.config.micro_batches) return {};
          break;
        }
        const int unit = owner_of(a.buffer);
        if (sent.contains(unit)) return {};
        if (sums_once) {
          // The first micro-batch is in its place, the others were added to it.
          if (sums[unit]++ != 0) return {};
          std::string text = part[unit];
          for (const auto& slot : program.buffers[static_cast<std::size_t>(a.buffer)].slots)
            text += std::to_string(slot.parameter) + ":" + gradient[slot.parameter];
          sent[unit] = text + "sum";
          break;
        }
        std::string text;
        for (const auto& slot : program.buffers[static_cast<std::size_t>(a.buffer)].slots) {
          text += std::to_string(slot.parameter) + ":" + gradient[slot.parameter];
          gradient[slot.parameter].clear();
        }
        const int m = sent_micro_batch[unit]++;
        if (m > 0) {
          if (scratch_owner >= 0) return {};
          scratch_owner = unit;
          scratch = text;
        }
        sent[unit] = text;
        break;
      }
      case ActionKind::wait:
        if (a.buffer < 0) {
          if (coming.erase(a.unit) == 0) return {};
          whole.insert(a.unit);
          kept[a.unit] = 0;
        } else if (a.buffer == program.metrics_buffer()) {
          if (sums[-1] != 1) return {};
          sums[-1] = 2;
        } else {
          const int unit = owner_of(a.buffer);
          if (!sent.contains(unit)) return {};
          if (sums_once) {
            part[unit] = sent[unit];
            sent.erase(unit);
            break;
          }
          if (sent_micro_batch[unit] == 1) part[unit] = sent[unit];
          sent.erase(unit);
        }
        break;
      case ActionKind::accumulate:
        if (sums_once) {  // what is complete goes to the sum, in the order of micro-batches
          if (backward[a.micro_batch] < units - a.unit || sums.contains(a.unit)) return {};
          part[a.unit] += "+" + std::to_string(a.micro_batch);
          break;
        }
        if (scratch_owner != a.unit || sent.contains(a.unit)) return {};
        part[a.unit] += "+" + scratch;
        scratch_owner = -1;
        break;
      case ActionKind::clip:
        if (!sent.empty() || scratch_owner >= 0 || sums[-1] != 2 || clipped) return {};
        if (part.size() != owners.size()) return {};
        clipped = true;
        break;
      case ActionKind::optimize:
        if (!clipped || whole != (rests_whole ? owners : std::set<int>()) || !coming.empty()) return {};
        for (const auto& [unit, ways] : kept)
          if (ways != 0) return {};
        whole.clear();
        updated = true;
        break;
      case ActionKind::reduce_partial:  // of sequence parallelism, see check_test.cpp
      case ActionKind::broadcast:
      case ActionKind::recompute:
      case ActionKind::send:
      case ActionKind::recv:
      case ActionKind::take:
        return {};
    }
  }
  return updated && whole == (rests_whole ? owners : std::set<int>()) ? part : std::map<int, std::string>();
}

}  // namespace

TEST_CASE("rows are split as torch.chunk splits them, and the parts are the whole") {
  struct Row {
    std::int64_t rows;
    int ranks;
    std::vector<std::int64_t> parts;
  };
  for (const auto& row : {Row{10, 4, {3, 3, 3, 1}}, Row{5, 4, {2, 2, 1, 0}}, Row{3, 4, {1, 1, 1, 0}},
                          Row{8, 4, {2, 2, 2, 2}}, Row{1, 2, {1, 0}}}) {
    ModelDescription model;
    model.parameters = {{"w", row.rows * 6, row.rows}};
    model.units = {{"only", {0}}};
    const auto program = compile(model, split(row.ranks, 1), 0);
    const auto& slot = program.shards.front().slots.front();
    std::vector<std::int64_t> parts;
    for (int rank = 0; rank < row.ranks; ++rank) parts.push_back(slot.rows_of(rank));
    CHECK(parts == row.parts);
    CHECK(program.shards.front().numel == row.ranks * row.parts.front() * 6);
    CHECK(program.shards.front().shard_numel == row.parts.front() * 6);
  }
}

TEST_CASE("a unit's parameters are gathered while the one before it runs, and dropped behind it") {
  const auto step = labels(compile(tiny_model(), split(2, 1), 0));
  const std::vector<std::string> expected = {
      "UNSHARD embedding", "WAIT for the parameters of embedding", "UNSHARD h.0", "FORWARD embedding",
      "WAIT for the parameters of h.0", "UNSHARD h.1", "FORWARD h.0", "RESHARD h.0", "WAIT for the parameters of h.1",
      "UNSHARD head", "FORWARD h.1", "RESHARD h.1",
      // The tied table is needed again at once, and the head goes backward at once.
      "WAIT for the parameters of head", "FORWARD head", "LOSS micro-batch 0", "UNSHARD h.1", "BACKWARD head",
      "RESHARD head", "REDUCE gradients of head", "WAIT for the parameters of h.1", "UNSHARD h.0", "BACKWARD h.1",
      "RESHARD h.1", "WAIT gradients of head", "REDUCE gradients of h.1", "WAIT for the parameters of h.0",
      "BACKWARD h.0", "RESHARD h.0", "WAIT gradients of h.1", "REDUCE gradients of h.0", "BACKWARD embedding",
      "RESHARD embedding", "WAIT gradients of h.0", "REDUCE gradients of embedding", "WAIT gradients of embedding",
      "REDUCE metrics", "WAIT metrics", "CLIP", "OPTIMIZE"};
  CHECK(step == expected);
  const auto kept = labels(compile(tiny_model(), split(2, 1, false), 0));
  CHECK(std::ranges::count_if(kept, [](const auto& label) { return label.starts_with("UNSHARD"); }) == 4);
}

TEST_CASE("ZeRO on one rank splits nothing") {
  for (const int stage : {1, 2}) {
    CAPTURE(stage);
    CHECK(check(compile_all(tiny_model(), zero(stage, 1, 2))).problems.empty());
    CHECK(labels(compile(tiny_model(), zero(stage, 1, 2), 0)) == labels(compile(tiny_model(), {{}, 2}, 0)));
  }
}

TEST_CASE("programs with split parameters are right for every setting, also in worlds beyond this machine") {
  for (const int ranks : {2, 3, 7, 512}) {
    for (const int micro_batches : {1, 3}) {
      for (const bool reshard : {true, false}) {
        for (const bool prefetch : {true, false}) {
          CAPTURE(ranks, micro_batches, reshard, prefetch);
          const auto programs = compile_all(tiny_model(), split(ranks, micro_batches, reshard, prefetch));
          CHECK(check(programs).problems == std::vector<std::string>());
          CHECK_FALSE(simulate(programs.back()).empty());
        }
      }
    }
  }
  for (const int micro_batches : {1, 3}) {
    for (const auto& config :
         {hybrid(2, 2, micro_batches), hybrid(16, 32, micro_batches), hybrid(1, 6, micro_batches, 3),
          hybrid(8, 64, micro_batches, 8), zero(1, 512, micro_batches), zero(2, 7, micro_batches)}) {
      CAPTURE(config.axes.to_string(), config.zero, micro_batches);
      const auto programs = compile_all(tiny_model(), config);
      CHECK(check(programs).problems == std::vector<std::string>());
      CHECK_FALSE(simulate(programs.back()).empty());
    }
  }
}

TEST_CASE("ZeRO gathers what was updated, parts over neighbours are gathered from neighbours") {
  auto step = labels(compile(tiny_model(), zero(1, 2, 2), 0));
  const std::vector<std::string> end(step.end() - 10, step.end());
  CHECK(end == std::vector<std::string>{"CLIP", "OPTIMIZE", "UNSHARD embedding", "UNSHARD h.0", "UNSHARD h.1",
                                        "UNSHARD head", "WAIT for the parameters of embedding",
                                        "WAIT for the parameters of h.0", "WAIT for the parameters of h.1",
                                        "WAIT for the parameters of head"});
  const auto count = [&](const std::string& start) {
    return std::ranges::count_if(step, [&](const auto& label) { return label.starts_with(start); });
  };
  CHECK(count("REDUCE gradients") == 4);
  CHECK(count("ACCUMULATE") == 4);
  step = labels(compile(tiny_model(), zero(2, 2, 2), 0));
  CHECK(count("REDUCE gradients") == 8);
  step = labels(compile(tiny_model(), hybrid(1, 4, 1, 2), 0));
  CHECK(count("RESHARD h.0 to 2 ranks") == 1);
  CHECK(count("UNSHARD h.0 from 2 ranks") == 1);
  CHECK(count("UNSHARD h.0") == 2);
  // The last unit goes backward at once, and whole to whole or to what a rank has anyway needs no third place.
  CHECK(count("RESHARD head to") == 0);
  CHECK(labels(compile(tiny_model(), hybrid(1, 4, 1, 4), 0)) == labels(compile(tiny_model(), split(4, 1), 0)));
  CHECK(labels(compile(tiny_model(), hybrid(1, 4, 1, 1), 0)) == labels(compile(tiny_model(), split(4, 1, false), 0)));
}

TEST_CASE("what a program sends is what the plans of redistribution between its layouts send") {
  auto configs = small_worlds();
  for (auto config : small_worlds()) {
    config.param_dtype = DType::bf16;
    configs.push_back(config);
    config.reduce_dtype = DType::bf16;
    configs.push_back(config);
  }
  for (const auto& config : configs) {
    for (int rank = 0; rank < config.axes.world_size(); ++rank) {
      const auto program = compile(tiny_model(), config, rank);
      std::map<std::string, std::uint64_t> planned;
      const auto add = [&](const RedistributePlan& plan, int times) {
        for (const auto& [axes, bytes] : plan.bytes_by_axes(rank))
          planned[axes] += bytes * static_cast<std::uint64_t>(times);
      };
      for (const auto& action : program.step) {
        if (action.kind == ActionKind::unshard) {
          for (const auto& slot : program.shards[static_cast<std::size_t>(action.unit)].slots) {
            if (action.ways == 0) {
              add(gather_plan(config, slot), 1);
            } else {  // between neighbours, each of whom has one of so many parts
              planned["fsdp"] +=
                  static_cast<std::uint64_t>(slot.chunk_numel() * config.axes.fsdp / action.ways * (action.ways - 1)) *
                  size_of(config.param_dtype);
            }
          }
        }
      }
      const bool once = config.zero == 1;
      for (const auto& group : program.shards)
        for (const auto& slot : group.slots) add(reduce_plan(config, slot), once ? 1 : config.micro_batches);
      auto predicted = predict(program).step_bytes;
      predicted.erase("metrics");
      CAPTURE(config.axes.to_string(), config.zero, config.reshard_ways, rank);
      CHECK(std::map<std::string, std::uint64_t>(predicted.begin(), predicted.end()) == planned);
    }
  }
}

TEST_CASE("replicas send what a sum over parts and a sum over replicas would, ZeRO what an all-reduce would") {
  ModelDescription model;  // divides by 4
  model.parameters = {{"a", 64, 16}, {"b", 32, 8}};
  model.units = {{"first", {0}}, {"second", {1}}};
  const std::uint64_t bytes = 96 * 4;
  const auto sent = predict(compile(model, hybrid(2, 2, 1), 3)).step_bytes;
  CHECK(sent.at("dp+fsdp") + sent.at("dp") == bytes / 2 + 2 * bytes / 2 / 2);
  ParallelConfig whole;
  whole.axes.dp = 4;
  for (const int stage : {1, 2})
    CHECK(predict(compile(model, zero(stage, 4, 1), 3)).step_bytes.at("dp") ==
          predict(compile(model, whole, 3)).step_bytes.at("dp"));
}

TEST_CASE("in bf16 values are gathered with half the bytes, and gradients sent with half when asked") {
  auto config = split(4, 1, false);
  const auto exact = predict(compile(tiny_model(), config, 0));
  const auto gradients = exact.step_bytes.at("fsdp") / 2;  // one gather, one sum
  config.param_dtype = DType::bf16;
  CHECK(predict(compile(tiny_model(), config, 0)).step_bytes.at("fsdp") == gradients + gradients / 2);
  config.reduce_dtype = DType::bf16;
  const auto narrow = predict(compile(tiny_model(), config, 0));
  CHECK(narrow.step_bytes.at("fsdp") == gradients);
  CHECK(narrow.param_bytes == exact.param_bytes);
  CHECK(narrow.step_bytes.at("metrics") == exact.step_bytes.at("metrics"));
  ParallelConfig whole;
  whole.axes.dp = 4;
  const auto sent = predict(compile(tiny_model(), whole, 0)).step_bytes.at("dp");
  whole.reduce_dtype = DType::bf16;
  CHECK(predict(compile(tiny_model(), whole, 0)).step_bytes.at("dp") == sent / 2);
  whole.reduce_dtype = DType::i64;
  CHECK_THROWS_WITH(compile(tiny_model(), whole, 0), Catch::Contains("type i64, expected f32 or bf16"));
}

TEST_CASE("a rank of ZeRO or HSDP holds whole values and gradients, or its part of them") {
  const auto model = tiny_model();
  const auto whole = predict(compile(model, zero(1, 4, 1), 0));
  CHECK(whole.param_bytes >= static_cast<std::uint64_t>(model.numel()) * 4);
  CHECK(whole.param_bytes < static_cast<std::uint64_t>(model.numel() + 7 * 3 + 1) * 4);  // fewer than 4 of padding each
  CHECK(whole.grad_bytes == whole.param_bytes + kMetrics * 4);
  const auto two = predict(compile(model, zero(2, 4, 1), 0));
  CHECK(two.param_bytes == whole.param_bytes);
  CHECK(two.grad_bytes == two.param_bytes / 4 + kMetrics * 4);
  const auto replicas = predict(compile(model, hybrid(2, 4, 1), 0)), alone = predict(compile(model, split(4, 1), 0));
  CHECK(replicas.param_bytes == alone.param_bytes);
  CHECK(replicas.grad_bytes == alone.grad_bytes);
}

TEST_CASE("an action on split parameters that one rank drops or does twice is noticed") {
  for (const auto& config : small_worlds()) {
    const auto programs = compile_all(tiny_model(), config);
    for (std::size_t i = 0; i < programs[0].step.size(); ++i) {
      CAPTURE(config.axes.world_size(), config.micro_batches, programs[0].label(programs[0].step[i]));
      const auto at = static_cast<std::ptrdiff_t>(i);
      auto dropped = programs;
      dropped.back().step.erase(dropped.back().step.begin() + at);
      CHECK_FALSE(check(dropped).ok());
      auto doubled = programs;
      auto copy = doubled.back().step[i];
      copy.id = 1000;
      doubled.back().step.insert(doubled.back().step.begin() + at, copy);
      CHECK_FALSE(check(doubled).ok());
    }
  }
}

TEST_CASE("whatever mutation check accepts computes the same gradients from whole parameters") {
  std::mt19937 random(7);
  for (const auto& config : {split(2, 1), split(2, 2), split(2, 2, false, false), hybrid(2, 2, 1), hybrid(1, 4, 1, 2),
                             zero(1, 2, 1), zero(1, 2, 2), zero(2, 2, 1), zero(2, 2, 2)}) {
    const auto programs = compile_all(tiny_model(), config);
    const auto wanted = simulate(programs[0]);
    REQUIRE_FALSE(wanted.empty());
    int accepted = 0;
    for (int round = 0; round < 4000; ++round) {
      auto mutated = programs;
      auto& step = mutated[random() % 2].step;
      for (unsigned n = 1 + random() % 3; n > 0; --n) {
        const auto i = random() % step.size(), j = random() % 2 == 0 ? (i + 1) % step.size() : random() % step.size();
        std::swap(step[i], step[j]);
      }
      if (!check(mutated).ok()) continue;
      ++accepted;
      for (const auto& program : mutated) CHECK(simulate(program) == wanted);
    }
    CHECK(accepted > 0);
    CHECK(accepted < 2000);
  }
}

TEST_CASE("what is sent and held is predicted: a gather and a half of the parameters, and their n-th part") {
  const auto model = tiny_model();
  for (const int ranks : {2, 4}) {
    const auto program = compile(model, split(ranks, 1), 0);
    std::uint64_t whole = 0;
    for (const auto& group : program.shards) whole += static_cast<std::uint64_t>(group.numel) * 4;
    const auto others = static_cast<std::uint64_t>(ranks - 1), n = static_cast<std::uint64_t>(ranks);
    const auto prediction = predict(program);
    CHECK(prediction.param_bytes == whole / n);
    std::uint64_t gathered = 0;
    for (const auto& action : program.step) {
      if (action.kind == ActionKind::unshard)
        gathered += static_cast<std::uint64_t>(program.shards[static_cast<std::size_t>(action.unit)].numel) * 4;
    }
    const auto sums = whole * others / n;
    CHECK(prediction.step_bytes.at("fsdp") == gathered * others / n + sums);
  }
}

TEST_CASE("a plan says what a rank holds, sends and does, and what is wrong") {
  auto programs = compile_all(tiny_model(), split(3, 1));
  DryRun needs;
  needs.held_bytes = {1 << 20, 0, 2 << 20, 0, 0, 0};
  needs.peak_bytes = {1 << 20, 0, 2 << 20, 5 << 20, 0, 0};
  needs.step_bytes["fsdp"] = 3 << 10;
  needs.forward_flops = 4e12;
  const auto text = plan_text(programs, 2, needs);
  CHECK_THAT(text, Catch::Contains("  param                       1.0 MiB         1.0 MiB\n"));
  CHECK_THAT(text, Catch::Contains("  activation                  0 bytes         5.0 MiB\n"));
  CHECK_THAT(text, Catch::Contains("  together                    3.0 MiB\n"));
  CHECK_THAT(text, Catch::Contains("  axis fsdp                   3.0 KiB\n"));
  CHECK_THAT(text, Catch::Contains("  backward                    8 TFLOP\n"));
  CHECK_THAT(text, Catch::Contains("fsdp=3, parameters resharded after forward"));
  CHECK_THAT(text, Catch::Contains("table                                   rows 68 to 99 of 100"));
  CHECK_THAT(text, Catch::Contains("h.0.b                                   none of 4 rows"));
  CHECK_THAT(plan_text(compile_all(tiny_model(), hybrid(2, 2, 1)), 2, needs),
             Catch::Contains("dp=2,fsdp=2, parameters resharded after forward") &&
                 Catch::Contains("table                                   rows 0 to 49 of 100"));
  CHECK_THAT(plan_text(compile_all(tiny_model(), zero(2, 4, 1)), 3, needs),
             Catch::Contains("dp=4, ZeRO stage 2") && Catch::Contains("updated by rank 3\n") &&
                 Catch::Contains("elements 75 to 99 of 100"));
  CHECK_THAT(plan_text(compile_all(tiny_model(), hybrid(1, 4, 1, 2)), 0, needs),
             Catch::Contains("parameters resharded to 2 ranks after forward"));
  CHECK_THAT(text, Catch::Contains("  UNSHARD h.1\n") && Catch::Contains("the programs of 3 ranks fit together"));
  programs[1].step.pop_back();
  CHECK_THAT(plan_text(programs, 2, needs), Catch::Contains("WRONG\n  rank 1: the step ends without OPTIMIZE"));
  CHECK(bytes_text(1536) == "1.5 KiB");
}
