// One reduce_scatter, all_gather or all_to_all of boxes between the ranks of a group: what lies where, and the call.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "worker_runtime/comm/process_group.hpp"
#include "worker_runtime/mesh/box.hpp"
#include "worker_runtime/mesh/plan.hpp"

namespace dtrun::runtime {

// Rank q of the group receives what is both in this rank's box before and in q's box after; the parts are padded to the
// largest. One box instead of a list: every rank gets the same (all_gather), or what arrives is already one
// (reduce_scatter).
struct Exchange {
  std::vector<Box> send;     // relative to the local tensor before, by receiving rank
  std::vector<Box> receive;  // relative to the local tensor after, by sending rank
  Shape before, after;       // local
  std::int64_t part = 0;     // elements
  StepKind kind = StepKind::all_gather;
  Tensor sent = {};
  Tensor received = {};  // parts in rank order; set by the caller before begin()
  Work work = {};

  // Whether the local tensor, filled up to elements_out(), can be handed to the collective as it is.
  bool leaves_in_place() const;
  std::int64_t elements_out() const { return part * static_cast<std::int64_t>(send.size()); }
  // Whether the first elements that arrive are the result as it is.
  bool arrives_in_place() const;
  std::int64_t elements_in() const { return part * static_cast<std::int64_t>(receive.size()); }
  void begin(ProcessGroup& group, const Tensor& local, const std::function<Tensor(std::int64_t count)>& allocate);
  // Copies what arrived to its place in `result`.
  void unpack(const Tensor& result) const;
};

Exchange plan_exchange(const RedistributePlan& plan, const RedistributeStep& step, int rank);

}  // namespace dtrun::runtime
