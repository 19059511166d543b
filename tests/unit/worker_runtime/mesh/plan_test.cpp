// Plans are checked for meshes far beyond the machine: what each kind of step claims about the boxes before and after
// it is proved rank by rank; what it sends is compared with the formulas.
#include "worker_runtime/mesh/plan.hpp"

#include <random>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"

using namespace dtrun;
using namespace dtrun::runtime;

namespace {

const Placement R = Placement::replicate();
const Placement P = Placement::partial();
Placement S(int dim) { return Placement::shard(dim); }

std::string steps_of(const Layout& from, const Layout& to, const MeshShape& mesh, const Shape& shape = {16, 8}) {
  return plan_redistribute(shape, DType::f32, from, to, mesh).to_string();
}

// Throws the first claim of `step` that does not hold on `rank`.
void check_step(const RedistributePlan& plan, const RedistributeStep& step, int rank) {
  const auto box = [&](const Layout& layout, int r) { return local_box(plan.shape, layout, plan.mesh, r); };
  const Box before = box(step.before, rank);
  const Box after = box(step.after, rank);
  const std::int64_t common = before.intersect(after).numel();
  const auto claim = [](bool holds, const char* what) {
    if (!holds) throw std::runtime_error(what);
  };
  const auto is = [&](const Placement& from, const Placement& to, int axis) {
    return step.before[axis].kind() == from.kind() && step.after[axis].kind() == to.kind();
  };
  const std::vector<int> group = plan.mesh.group_ranks(step.axes, rank);
  const std::int64_t part = plan.part_of(step, rank);
  std::int64_t sent = 0;
  std::int64_t received = 0;
  for (const int other : group) {
    const std::int64_t out = before.intersect(box(step.after, other)).numel();
    const std::int64_t in = after.intersect(box(step.before, other)).numel();
    sent += out;
    received += in;
    if (part != 0) claim(out <= part && in <= part, "a part holds what it must");
  }
  for (int axis = 0; axis < plan.mesh.axes(); ++axis) {
    const bool takes_part = std::find(step.axes.begin(), step.axes.end(), axis) != step.axes.end();
    if (!takes_part) claim(step.before[axis] == step.after[axis], "other axes keep their placement");
  }
  const int axis = step.axes.front();
  switch (step.kind) {
    case StepKind::slice:
      return claim(is(R, S(0), axis) && common == after.numel(), "a slice is a part of what was there");
    case StepKind::keep_first:
      return claim(is(R, P, axis) && before == after, "keeping moves no box");
    case StepKind::pad:
      return claim(is(S(0), P, axis) && common == before.numel(), "padding keeps what was there");
    case StepKind::all_reduce:
      for (const int a : step.axes) claim(is(P, R, a), "an all_reduce ends sums");
      return claim(before == after && part == before.numel(), "an all_reduce moves no box");
    case StepKind::reduce_scatter:
      for (const int a : step.axes) claim(is(P, S(0), a), "a reduce_scatter ends sums");
      return claim(common == after.numel() && sent == before.numel(), "every element of a sum goes to one rank");
    case StepKind::all_gather:
      return claim(is(S(0), R, axis) && received == after.numel(), "a gather finds every element");
    case StepKind::all_to_all:
      return claim(is(S(0), S(0), axis) && sent == before.numel() && received == after.numel(),
                   "an exchange sends and finds every element once");
  }
}

Layout random_layout(std::mt19937& random, int axes, int dims) {
  std::vector<Placement> placements;
  std::vector<int> order;
  for (int axis = 0; axis < axes; ++axis) {
    const auto kind = random() % 4;
    placements.push_back(kind == 0                ? R
                         : kind == 1 || dims == 0 ? P
                                                  : S(static_cast<int>(random() % static_cast<unsigned>(dims))));
    order.push_back(axis);
  }
  std::shuffle(order.begin(), order.end(), random);
  return Layout(placements, order);
}

}  // namespace

TEST_CASE("the transitions that the training modes need take one collective each") {
  const MeshShape one({4}, {"dp"});
  CHECK(steps_of(Layout({R}), Layout({R}), one) == "");
  CHECK(steps_of(Layout({R}), Layout({S(0)}), one) == "slice dp");
  CHECK(steps_of(Layout({S(0)}), Layout({R}), one) == "all_gather dp");
  CHECK(steps_of(Layout({S(0)}), Layout({S(1)}), one) == "all_to_all dp");
  CHECK(steps_of(Layout({P}), Layout({R}), one) == "all_reduce dp");
  CHECK(steps_of(Layout({P}), Layout({S(1)}), one) == "reduce_scatter dp");
  CHECK(steps_of(Layout({R}), Layout({P}), one) == "keep_first dp");
  CHECK(steps_of(Layout({S(0)}), Layout({P}), one) == "pad dp");
  CHECK(steps_of(Layout({P}), Layout({P}), one) == "");
  const MeshShape two({2, 4}, {"dp", "tp"});
  const Layout fsdp_over_tp({S(0), S(0)}, {1, 0});
  CHECK(steps_of(fsdp_over_tp, Layout({R, S(0)}), two) == "all_gather dp");
  CHECK(steps_of(Layout({P, S(0)}), fsdp_over_tp, two) == "reduce_scatter dp");
  CHECK(steps_of(Layout({S(0), S(1)}), Layout({R, S(1)}), two) == "all_gather dp");
  // HSDP: one sum over both axes, in rank order.
  CHECK(steps_of(Layout({P, P}), Layout({R, S(0)}), two) == "reduce_scatter dp+tp, all_gather dp");
  CHECK(steps_of(Layout({P, P}), Layout({R, R}), two) == "all_reduce dp+tp");
  CHECK(steps_of(Layout({P, R}), Layout({R, P}), two) == "all_reduce dp, keep_first tp");
}

TEST_CASE("cheap steps come first, and axes of one rank cost nothing") {
  const MeshShape two({2, 4}, {"dp", "tp"});
  CHECK(steps_of(Layout({R, P}), Layout({S(0), S(1)}), two) == "slice dp, reduce_scatter tp");
  CHECK(steps_of(Layout({S(0), P}), Layout({R, R}), two) == "all_reduce tp, all_gather dp");
  CHECK(steps_of(Layout({S(0), P}), Layout({S(1), S(0)}), two) == "all_to_all dp, reduce_scatter tp");
  CHECK(steps_of(Layout({S(0), S(0)}), Layout({S(0), S(0)}, {1, 0}), two) ==
        "all_gather tp, all_gather dp, slice tp, slice dp");
  const MeshShape thin({1, 4}, {"dp", "tp"});
  CHECK(steps_of(Layout({P, S(0)}), Layout({S(0), S(0)}), thin) == "");
  CHECK(steps_of(Layout({S(1), P}), Layout({P, R}), thin) == "all_reduce tp");
}

TEST_CASE("bytes are the formulas of the training modes, on 512 ranks too") {
  const std::uint64_t weight = 4096 * 1024 * 4ULL;
  const auto bytes = [](const MeshShape& mesh, const Layout& from, const Layout& to) {
    const RedistributePlan plan = plan_redistribute({4096, 1024}, DType::f32, from, to, mesh);
    for (const int rank : {1, 77, mesh.size() - 1}) REQUIRE(plan.bytes(rank) == plan.bytes(0));
    return plan.bytes(0);
  };
  const MeshShape flat({512}, {"dp"});
  CHECK(bytes(flat, Layout({P}), Layout({R})) == 2 * weight * 511 / 512);
  CHECK(bytes(flat, Layout({P}), Layout({S(0)})) == weight * 511 / 512);
  CHECK(bytes(flat, Layout({S(0)}), Layout({R})) == weight * 511 / 512);
  CHECK(bytes(flat, Layout({S(0)}), Layout({S(1)})) == weight * 511 / 512 / 512);
  const MeshShape hybrid({16, 32}, {"rep", "shard"});
  const RedistributePlan reduce =
      plan_redistribute({4096, 1024}, DType::f32, Layout({P, P}), Layout({R, S(0)}), hybrid);
  // (S-1)/S G + 2 (R-1)/R G/S, as if summed along one axis after the other.
  CHECK(reduce.bytes(5) == weight * 31 / 32 + 2 * weight * 15 / 16 / 32);
  CHECK(reduce.bytes_by_axes(5) ==
        std::map<std::string, std::uint64_t>{{"rep", weight / 32 * 15 / 16}, {"rep+shard", weight * 511 / 512}});
  const MeshShape three({8, 8, 8}, {"pp", "dp", "tp"});
  CHECK(bytes(three, Layout({R, S(0), S(0)}, {0, 2, 1}), Layout({R, R, S(0)})) == weight / 8 * 7 / 8);
}

TEST_CASE("uneven parts count with their padding") {
  const MeshShape mesh({4}, {"dp"});
  const RedistributePlan plan = plan_redistribute({5, 3}, DType::bf16, Layout({S(0)}), Layout({R}), mesh);
  CHECK(plan.part_of(plan.steps[0], 3) == 6);
  CHECK(plan.bytes(3) == 3 * 6 * 2);
  const RedistributePlan nothing = plan_redistribute({0, 3}, DType::f32, Layout({P}), Layout({S(0)}), mesh);
  CHECK(nothing.bytes(0) == 0);
}

TEST_CASE("any plan on any mesh goes from its first layout to its last by steps that do what they say") {
  std::mt19937 random(7);
  const std::vector<MeshShape> meshes{MeshShape({512}, {"a"}),
                                      MeshShape({16, 32}, {"a", "b"}),
                                      MeshShape({8, 8, 8}, {"a", "b", "c"}),
                                      MeshShape({2, 2}, {"a", "b"}),
                                      MeshShape({3, 1, 5}, {"a", "b", "c"}),
                                      MeshShape({4, 4, 4, 8}, {"a", "b", "c", "d"}),
                                      MeshShape({2, 3, 2}, {"a", "b", "c"})};
  const std::vector<std::int64_t> extents{0, 1, 2, 3, 5, 16, 31, 64, 1000};
  int longest = 0;
  for (int round = 0; round < 3000; ++round) {
    const MeshShape& mesh = meshes[random() % meshes.size()];
    std::vector<std::int64_t> dims;
    for (auto rank = random() % 4; rank-- > 0;) dims.push_back(extents[random() % extents.size()]);
    const Shape shape{std::span<const std::int64_t>(dims)};
    const Layout from = random_layout(random, mesh.axes(), shape.rank());
    const Layout to = random_layout(random, mesh.axes(), shape.rank());
    const RedistributePlan plan = plan_redistribute(shape, DType::f32, from, to, mesh);
    INFO(shape.to_string() << " " << mesh.to_string() << ": " << from.to_string() << " -> " << to.to_string() << ": "
                           << plan.to_string());
    longest = std::max(longest, static_cast<int>(plan.steps.size()));
    for (int sample = 0; sample < 4; ++sample) {
      const int rank = static_cast<int>(random() % static_cast<unsigned>(mesh.size()));
      Box now = local_box(shape, from, mesh, rank);
      for (const RedistributeStep& step : plan.steps) {
        REQUIRE(local_box(shape, step.before, mesh, rank) == now);
        REQUIRE_NOTHROW(check_step(plan, step, rank));
        now = local_box(shape, step.after, mesh, rank);
      }
      REQUIRE(now == local_box(shape, to, mesh, rank));
    }
    int sums = 0;
    for (const RedistributeStep& step : plan.steps)
      sums += step.kind == StepKind::all_reduce || step.kind == StepKind::reduce_scatter ? 1 : 0;
    REQUIRE(sums <= 1);
  }
  CHECK(longest > 4);
}

TEST_CASE("a plan between layouts that do not fit is refused") {
  const MeshShape mesh({2}, {"dp"});
  CHECK_THROWS_AS(plan_redistribute({4}, DType::f32, Layout({S(1)}), Layout({R}), mesh), ShapeError);
  CHECK_THROWS_AS(plan_redistribute({4}, DType::f32, Layout({R}), Layout({R, R}), mesh), ShapeError);
}
