// Carries out a RedistributePlan on this rank's part of a tensor. Copies only what the collectives cannot take or give
// as it lies: cuts of equal size along the outermost dimension go straight in and out.
#pragma once

#include <cstdint>
#include <memory>

#include "worker_runtime/core/memory_account.hpp"
#include "worker_runtime/mesh/device_mesh.hpp"
#include "worker_runtime/mesh/plan.hpp"
#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime {

struct RedistributeOptions {
  MemoryTag tag = MemoryTag::activation;  // what the memory of the result is charged to; buffers on the way: comm
  // The elements of the input may be overwritten, and the result may share them. Otherwise the input stays as it is,
  // and the result shares its elements only when the plan has no steps.
  bool consume = false;
  // Where the result goes, when defined: of the local shape, or flat (see FlatSizes). Must not overlap the input; but
  // with flat memory on both sides this rank's part of the input or of the result may be the other one.
  Tensor out = {};
};

// Uneven cuts are padded for the collective. Who owns flat memory (a unit's parameters, a bucket) keeps room for that
// and no copy is made: a plan of one collective takes and gives one-dimensional tensors of these numbers of elements,
// of which the first are the local tensor. 0 where the elements do not lie as the collective wants them, and for other
// plans.
struct FlatSizes {
  std::int64_t input = 0;   // what is beyond the local tensor must be numbers (reduce_scatter adds them up)
  std::int64_t output = 0;  // what is beyond it is overwritten
};
FlatSizes flat_sizes(const RedistributePlan& plan, int rank);

// Starts on construction: steps that move nothing and the first collective, which a group with comm_thread does in the
// background. wait() does the rest. Dropping it before wait() leaves the other ranks of a longer plan waiting. The
// ranks of the mesh start and wait in the same order. One thread. ShapeError before anything is sent, CommError from
// the groups.
class Redistribution {
 public:
  // `local` must have the shape and type that the plan starts from, or be flat.
  Redistribution(DeviceMesh mesh, RedistributePlan plan, Tensor local, RedistributeOptions options = {});
  Redistribution(Redistribution&&) noexcept;
  Redistribution& operator=(Redistribution&&) noexcept;
  ~Redistribution();

  const RedistributePlan& plan() const;
  // This rank's part of the result. The same tensor on every call.
  Tensor wait();

 private:
  class Run;
  std::unique_ptr<Run> run_;
};

}  // namespace dtrun::runtime
