#include "worker_runtime/mesh/plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime {

namespace {

bool is_prefix(const std::vector<int>& start, const std::vector<int>& whole) {
  return start.size() <= whole.size() && std::equal(start.begin(), start.end(), whole.begin());
}

// Cuts of a dimension are a stack: a new cut goes on top, and only the top one can be undone by one collective that
// moves boxes. The planner undoes cuts until each dimension's stack is the start of its goal, and adds the rest.
class Planner {
 public:
  Planner(RedistributePlan& plan, Layout now, Layout goal)
      : plan_(plan), now_(std::move(now)), goal_(std::move(goal)) {}

  // Each rule takes one step, or says that it has none. Every rule brings an axis nearer to its goal: sums happen once,
  // gathers only undo, and what undoing needs is never cut again before it is done.
  void run() {
    while (slice() || exchange() || sum() || gather() || pad() || keep_first()) {
      DTRUN_ASSERT(plan_.steps.size() < 8 * (goal_.placements().size() + 1));
    }
    DTRUN_ASSERT(now_ == goal_);
  }

 private:
  void step(StepKind kind, std::vector<int> axes, Layout after) {
    plan_.steps.push_back({kind, std::move(axes), now_, after});
    now_ = std::move(after);
  }

  // Whether the next cut of its dimension, on the way from `layout` to the goal, is that of `axis`.
  bool may_cut(const Layout& layout, int axis) const {
    if (!goal_[axis].is_shard()) return false;
    const std::vector<int> done = layout.cuts(goal_[axis].dim());
    const std::vector<int> all = goal_.cuts(goal_[axis].dim());
    return is_prefix(done, all) && done.size() < all.size() && all[done.size()] == axis;
  }
  bool must_undo(int axis) const {
    if (!now_[axis].is_shard()) return false;
    const std::vector<int> done = now_.cuts(now_[axis].dim());
    return done.back() == axis && !is_prefix(done, goal_.cuts(now_[axis].dim()));
  }
  template <class Condition>
  int find(Condition condition) const {
    for (int axis = 0; axis < now_.axes(); ++axis)
      if (condition(axis)) return axis;
    return -1;
  }

  bool slice() {
    const int axis = find([this](int a) { return now_[a].is_replicate() && may_cut(now_, a); });
    if (axis < 0) return false;
    step(StepKind::slice, {axis}, now_.with(axis, goal_[axis]));
    return true;
  }

  bool exchange() {
    const int axis = find([this](int a) { return must_undo(a) && may_cut(now_, a); });
    if (axis < 0) return false;
    step(StepKind::all_to_all, {axis}, now_.with(axis, goal_[axis]));
    return true;
  }

  // Axes that end up replicated beside others that end up sharded are cut too, and gathered later: that sends as much
  // as a reduce_scatter and an all_reduce one after the other, and the sum is one sum in rank order.
  bool sum() {
    std::vector<int> axes;
    for (const int axis : now_.partial_axes())
      if (!goal_[axis].is_partial()) axes.push_back(axis);
    if (axes.empty()) return false;
    Layout after = now_;
    int dim = Shape::kMaxRank;
    for (bool more = true; more;) {
      more = false;
      for (const int axis : axes) {
        if (!after[axis].is_partial() || !may_cut(after, axis)) continue;
        after = after.with(axis, goal_[axis]);
        dim = std::min(dim, goal_[axis].dim());
        more = true;
      }
    }
    const bool scatters = dim < Shape::kMaxRank;
    for (const int axis : axes)
      if (after[axis].is_partial()) after = after.with(axis, scatters ? Placement::shard(dim) : Placement::replicate());
    step(scatters ? StepKind::reduce_scatter : StepKind::all_reduce, std::move(axes), std::move(after));
    return true;
  }

  bool gather() {
    const int axis = find([this](int a) { return must_undo(a) && !goal_[a].is_partial(); });
    if (axis < 0) return false;
    step(StepKind::all_gather, {axis}, now_.with(axis, Placement::replicate()));
    return true;
  }

  bool pad() {
    const int axis = find([this](int a) { return must_undo(a); });
    if (axis < 0) return false;
    step(StepKind::pad, {axis}, now_.with(axis, Placement::partial()));
    return true;
  }

  bool keep_first() {
    const int axis = find([this](int a) { return now_[a].is_replicate() && goal_[a].is_partial(); });
    if (axis < 0) return false;
    step(StepKind::keep_first, {axis}, now_.with(axis, Placement::partial()));
    return true;
  }

  RedistributePlan& plan_;
  Layout now_;
  const Layout goal_;
};

// An axis of one rank is replicated, sharded and partial all at once.
Layout without_single_axes(Layout layout, const MeshShape& mesh) {
  for (int axis = 0; axis < mesh.axes(); ++axis)
    if (mesh.extent(axis) == 1) layout = layout.with(axis, Placement::replicate());
  return layout;
}

CommOp op_of(StepKind kind) {
  switch (kind) {
    case StepKind::all_reduce:
      return CommOp::all_reduce;
    case StepKind::reduce_scatter:
      return CommOp::reduce_scatter;
    case StepKind::all_gather:
      return CommOp::all_gather;
    case StepKind::all_to_all:
      return CommOp::all_to_all;
    default:
      return CommOp::barrier;
  }
}

}  // namespace

std::string_view name_of(StepKind kind) {
  constexpr std::array<std::string_view, 7> names{"slice",          "keep_first", "pad",       "all_reduce",
                                                  "reduce_scatter", "all_gather", "all_to_all"};
  return names[static_cast<std::size_t>(kind)];
}

RedistributePlan plan_redistribute(const Shape& shape, DType dtype, const Layout& from, const Layout& to,
                                   const MeshShape& mesh) {
  from.check(shape, mesh);
  to.check(shape, mesh);
  RedistributePlan plan{.shape = shape, .dtype = dtype, .mesh = mesh, .from = from, .to = to, .steps = {}};
  Planner(plan, without_single_axes(from, mesh), without_single_axes(to, mesh)).run();
  return plan;
}

std::int64_t RedistributePlan::part_of(const RedistributeStep& step, int rank) const {
  if (op_of(step.kind) == CommOp::barrier) return 0;
  // Chunks only get smaller with the coordinate, so the first rank of a group has the largest.
  const int first = mesh.group_ranks(step.axes, rank).front();
  const Box before = local_box(shape, step.before, mesh, first);
  return before.intersect(local_box(shape, step.after, mesh, first)).numel();
}

std::uint64_t RedistributePlan::bytes(const RedistributeStep& step, int rank) const {
  const int ranks = mesh.group_size(step.axes);
  const auto part = static_cast<std::uint64_t>(part_of(step, rank)) * size_of(dtype);
  const bool whole = step.kind == StepKind::all_to_all;
  return bytes_sent(op_of(step.kind), whole ? part * static_cast<std::uint64_t>(ranks) : part, ranks);
}

std::uint64_t RedistributePlan::bytes(int rank) const {
  std::uint64_t total = 0;
  for (const RedistributeStep& step : steps) total += bytes(step, rank);
  return total;
}

std::map<std::string, std::uint64_t> RedistributePlan::bytes_by_axes(int rank) const {
  std::map<std::string, std::uint64_t> result;
  for (const RedistributeStep& step : steps)
    if (const std::uint64_t sent = bytes(step, rank); sent != 0) result[mesh.label(step.axes)] += sent;
  return result;
}

std::string RedistributePlan::to_string() const {
  std::vector<std::string> parts;
  for (const RedistributeStep& step : steps)
    parts.push_back(fmt::format("{} {}", name_of(step.kind), mesh.label(step.axes)));
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace dtrun::runtime
