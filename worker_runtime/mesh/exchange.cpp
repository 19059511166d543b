#include "worker_runtime/mesh/exchange.hpp"

namespace dtrun::runtime {

namespace {

bool lie_in_order(const std::vector<Box>& boxes, const Shape& outer, std::int64_t part) {
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    if (boxes[i].numel() == 0) continue;
    if (!boxes[i].is_contiguous_in(outer) || boxes[i].first_in(outer) != static_cast<std::int64_t>(i) * part)
      return false;
  }
  return true;
}

Tensor part_at(const Tensor& parts, std::size_t index, std::int64_t part) {
  return parts.view({parts.numel()}).narrow(static_cast<std::int64_t>(index) * part, part);
}

// Boxes one after the other, each in a part of `part` elements; what is left of a part is zero.
void pack(const Tensor& parts, const Tensor& local, const std::vector<Box>& boxes, std::int64_t part) {
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    const Tensor here = part_at(parts, i, part);
    copy_box_out(here, local, boxes[i]);
    here.narrow(boxes[i].numel(), part - boxes[i].numel()).zero();
  }
}

}  // namespace

Exchange plan_exchange(const RedistributePlan& plan, const RedistributeStep& step, int rank) {
  const auto before = [&](int r) { return local_box(plan.shape, step.before, plan.mesh, r); };
  const auto after = [&](int r) { return local_box(plan.shape, step.after, plan.mesh, r); };
  const Box mine_before = before(rank);
  const Box mine_after = after(rank);
  Exchange result{.send = {}, .receive = {}, .before = mine_before.shape, .after = mine_after.shape};
  result.kind = step.kind;
  result.part = plan.part_of(step, rank);
  for (const int other : plan.mesh.group_ranks(step.axes, rank)) {
    if (step.kind != StepKind::all_gather)
      result.send.push_back(mine_before.intersect(after(other)).relative_to(mine_before));
    if (step.kind != StepKind::reduce_scatter)
      result.receive.push_back(mine_after.intersect(before(other)).relative_to(mine_after));
  }
  if (step.kind == StepKind::all_gather) result.send.push_back(Box::whole(mine_before.shape));
  if (step.kind == StepKind::reduce_scatter) result.receive.push_back(Box::whole(mine_after.shape));
  return result;
}

bool Exchange::leaves_in_place() const { return lie_in_order(send, before, part); }

bool Exchange::arrives_in_place() const { return lie_in_order(receive, after, part); }

void Exchange::begin(ProcessGroup& group, const Tensor& local,
                     const std::function<Tensor(std::int64_t count)>& allocate) {
  if (local.numel() == elements_out() && leaves_in_place()) {
    sent = local;
  } else {
    sent = kind == StepKind::all_gather ? received.view({received.numel()}).narrow(group.rank() * part, part)
                                        : allocate(elements_out());
    pack(sent, local, send, part);
  }
  switch (kind) {
    case StepKind::all_gather:
      work = group.all_gather_async(received, sent);
      break;
    case StepKind::reduce_scatter:
      work = group.reduce_scatter_async(received, sent);
      break;
    default:
      work = group.all_to_all_async(received, sent);
      break;
  }
}

void Exchange::unpack(const Tensor& result) const {
  for (std::size_t i = 0; i < receive.size(); ++i) copy_box_in(result, receive[i], part_at(received, i, part));
}

}  // namespace dtrun::runtime
