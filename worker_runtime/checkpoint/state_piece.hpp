// StatePiece: some elements of a tensor of the training state that a rank holds. A checkpoint is made of such pieces,
// whatever cut them.
#pragma once

#include <string>

#include "worker_runtime/ops/random.hpp"
#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime {

// A handle on memory of the run, on the host or on a device. `replicas` ranks hold the same elements; exactly one of
// them has each number `replica`, so that each writes its share.
struct StatePiece {
  std::string name;          // of the tensor: "wte.weight", "wte.weight.exp_avg"
  Shape shape;               // of the whole tensor
  ops::GlobalIndex where{};  // where the elements lie in it
  Tensor tensor;             // f32, any shape: its elements in row-major order
  int replicas = 1;
  int replica = 0;
};

}  // namespace dtrun::runtime
