// check() against mutated programs. The judge is a second, independent reading of a program: it follows the
// contributions of each gradient as text.
#include "worker_runtime/parallel/check.hpp"

#include <algorithm>
#include <map>
#include <random>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/unit/worker_runtime/parallel/programs.hpp"

using namespace dtrun::runtime;
using namespace dtrun::runtime::testing;

namespace {

// What the optimizer would see on one rank: for every parameter the text of its gradient. Empty when the step cannot
// run.
std::map<int, std::string> simulate(const Program& program, std::vector<int>& reduced) {
  const auto& model = program.model;
  std::map<int, std::string> bucket, scratch, sent, seen;
  std::map<int, int> forward, backward, owner, waits;
  std::map<int, bool> loss;
  bool clipped = false, updated = false;
  for (const auto& a : program.step) {
    if (updated) return {};
    const auto unit = static_cast<std::size_t>(std::max(a.unit, 0));
    if (a.kind == ActionKind::forward && forward[a.micro_batch]++ != a.unit) return {};
    if (a.kind == ActionKind::loss) {
      if (forward[a.micro_batch] != static_cast<int>(model.units.size()) || loss[a.micro_batch]) return {};
      loss[a.micro_batch] = true;
    }
    if (a.kind == ActionKind::backward) {
      if (!loss[a.micro_batch] || backward[a.micro_batch]++ != static_cast<int>(model.units.size()) - 1 - a.unit)
        return {};
      for (const int p : model.units[unit].parameters) {
        auto& slot = a.micro_batch == 0 ? bucket[p] : scratch[p];
        // The first contribution of a micro-batch overwrites what is there.
        if (owner[p] != a.micro_batch + 1) slot.clear();
        owner[p] = a.micro_batch + 1;
        slot += "m" + std::to_string(a.micro_batch) + "u" + std::to_string(a.unit) + " ";
      }
    }
    if (a.kind == ActionKind::accumulate) {
      for (const int p : model.units[unit].parameters) {
        if (model.first_use(p) == a.unit) bucket[p] += scratch[p];
      }
    }
    if (a.kind == ActionKind::reduce) {
      reduced.push_back(a.buffer);
      for (const auto& slot : program.buffers[static_cast<std::size_t>(a.buffer)].slots) {
        sent[slot.parameter] += bucket[slot.parameter] + "sum ";
      }
      if (a.buffer == program.metrics_buffer()) sent[-1] += "losses " + std::to_string(loss.size()) + " ";
    }
    if (a.kind == ActionKind::wait) {
      ++waits[a.buffer];
      if (std::ranges::find(reduced, a.buffer) == reduced.end()) return {};
    }
    if (a.kind == ActionKind::clip) {
      if (waits.size() != program.buffers.size() || clipped) return {};
      clipped = true;
    }
    if (a.kind == ActionKind::optimize) {
      if (!clipped) return {};
      updated = true;
    }
  }
  for (const auto& [buffer, times] : waits) {
    if (times != 1) return {};
  }
  // Written after it was sent: the optimizer would see another gradient than the peers.
  for (const auto& [p, text] : bucket) {
    if (sent[p] != text + "sum ") return {};
  }
  return updated ? sent : std::map<int, std::string>{};
}

bool right(const std::vector<Program>& mutated, const std::vector<Program>& original) {
  std::vector<int> unused, order_of_zero;
  const auto wanted = simulate(original.front(), unused);
  REQUIRE_FALSE(wanted.empty());
  simulate(mutated.front(), order_of_zero);
  for (const auto& program : mutated) {
    std::vector<int> order;
    if (simulate(program, order) != wanted || order != order_of_zero) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("dropping or duplicating any action of one rank is noticed") {
  for (const ParallelConfig& config : {ParallelConfig{{.dp = 1}, 1, 64, 64},
                                       {{.dp = 2}, 1, 64, 64},
                                       {{.dp = 3}, 3, 64, 64},
                                       {{.dp = 2}, 2, 1 << 20, 1 << 20}}) {
    const auto programs = compile_all(tiny_model(), config);
    for (std::size_t i = 0; i < programs[0].step.size(); ++i) {
      CAPTURE(config.axes.world_size(), config.micro_batches, programs[0].label(programs[0].step[i]));
      const auto at = static_cast<std::ptrdiff_t>(i);
      auto dropped = programs;
      dropped.back().step.erase(dropped.back().step.begin() + at);
      CHECK_FALSE(check(dropped).ok());
      auto doubled = programs;
      auto copy = doubled.back().step[i];
      copy.id = 1000;  // the equal id must not be the only thing that is noticed
      doubled.back().step.insert(doubled.back().step.begin() + at, copy);
      CHECK_FALSE(check(doubled).ok());
    }
  }
}

TEST_CASE("of all swaps of two actions exactly those that change nothing are accepted") {
  for (const ParallelConfig& config :
       {ParallelConfig{{.dp = 1}, 1, 64, 64}, {{.dp = 2}, 1, 64, 64}, {{.dp = 2}, 3, 64, 64}}) {
    const auto programs = compile_all(tiny_model(), config);
    const auto size = programs[0].step.size();
    std::size_t accepted = 0;
    for (std::size_t i = 0; i < size; ++i) {
      for (std::size_t j = i + 1; j < size; ++j) {
        auto swapped = programs;
        std::swap(swapped.back().step[i], swapped.back().step[j]);
        const bool ok = check(swapped).ok();
        CAPTURE(config.axes.world_size(), config.micro_batches, programs[0].label(programs[0].step[i]),
                programs[0].label(programs[0].step[j]));
        if (ok) CHECK(right(swapped, programs));
        accepted += ok;
      }
    }
    CHECK(accepted > 0);  // the order of waits does not matter
    CHECK(accepted < size * size / 8);
  }
}

TEST_CASE("what check accepts after several random mutations computes the same gradients") {
  const auto programs = compile_all(tiny_model(), {{.dp = 2}, 2, 64, 64});
  std::mt19937 random(1);
  int accepted = 0;
  for (int round = 0; round < 5000; ++round) {
    auto mutated = programs;
    auto& step = mutated[random() % 2].step;
    for (unsigned n = 1 + random() % 3; n > 0; --n) {
      const auto i = random() % step.size();
      switch (random() % 4) {
        case 0:
          std::swap(step[i], step[(i + 1) % step.size()]);
          break;
        case 1:
          std::swap(step[i], step[random() % step.size()]);
          break;
        case 2:
          step.erase(step.begin() + static_cast<std::ptrdiff_t>(i));
          break;
        default:
          step[i].kind = static_cast<ActionKind>(random() % 9);
          break;
      }
    }
    if (!check(mutated).ok()) continue;
    ++accepted;
    CHECK(right(mutated, programs));
  }
  CHECK(accepted > 0);
}

TEST_CASE("the sum of partial gradients over tp comes once, behind the other sums and before CLIP") {
  ParallelConfig config{{.dp = 2, .tp = 2}, 1, 64, 64};
  config.sequence_parallel = true;
  const auto programs = compile_all(tiny_model(), config);
  for (const auto& problem : check(programs).problems) WARN(problem);
  REQUIRE(check(programs).ok());
  const auto& right = programs.back().step;
  const auto place = std::ranges::find(right, ActionKind::reduce_partial, &Action::kind) - right.begin();
  REQUIRE(right[static_cast<std::size_t>(place) + 1].kind == ActionKind::clip);
  for (std::ptrdiff_t to = 0; to < static_cast<std::ptrdiff_t>(right.size()); ++to) {
    if (to == place) continue;
    auto moved = programs;
    auto& step = moved.back().step;
    const auto action = step[static_cast<std::size_t>(place)];
    step.erase(step.begin() + place);
    step.insert(step.begin() + to, action);
    CHECK_FALSE(check(moved).ok());
  }
  auto dropped = programs;
  for (auto& program : dropped) program.step.erase(program.step.begin() + place);
  CHECK_FALSE(check(dropped).ok());
  // Ranks of one group of tp that would sum different numbers of elements.
  auto other = tiny_model();
  other.parameters[1].is_cut = true;
  dropped = programs;
  dropped[1] = compile(other, config, 1);
  CHECK_FALSE(check(dropped).ok());
}

TEST_CASE("ranks that differ are told apart by rank and action") {
  auto programs = compile_all(tiny_model(), {{.dp = 4}, 1, 64, 64});
  auto& step = programs[3].step;
  const auto first = std::ranges::find(step, ActionKind::reduce, &Action::kind);
  const auto second = std::find_if(first + 1, step.end(), [](const Action& a) { return a.kind == ActionKind::reduce; });
  std::swap(first->buffer, second->buffer);
  std::swap(first->id, second->id);
  const auto report = check(programs);
  REQUIRE_FALSE(report.ok());
  CHECK_THAT(report.problems.back(), Catch::StartsWith("rank 3: collective 0") && Catch::Contains("on rank 0"));
  CHECK_THROWS_WITH(require_valid(programs), Catch::Contains("rank 3"));
}

TEST_CASE("other buckets, another configuration and a missing rank are noticed") {
  const auto programs = compile_all(tiny_model(), {{.dp = 2}, 1, 64, 64});
  auto other = programs;
  other[1] = compile(tiny_model(), {{.dp = 2}, 1, 128, 64}, 1);
  CHECK_FALSE(check(other).ok());
  other = programs;
  other[1] = other[0];
  CHECK_FALSE(check(other).ok());
  other.pop_back();
  CHECK_FALSE(check(other).ok());
  other = programs;
  other[0].buffers[0].slots.pop_back();
  CHECK_FALSE(check(other).ok());
  other = programs;
  other[0].setup.pop_back();
  CHECK_FALSE(check(other).ok());
  CHECK_FALSE(check({}).ok());
}
