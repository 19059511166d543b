// Compares backward with central differences, for tests of operations and models (ours and those of users).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "worker_runtime/autograd/tape.hpp"

namespace dtrun::runtime {

// A tensor whose gradient is checked: `value` is what forward reads, `grad` is where backward writes.
struct CheckedTensor {
  std::string name;
  Tensor value;
  Tensor grad;
};

struct GradientCheckOptions {
  double step = 1e-2;                    // distance of the two points to the middle
  std::int64_t elements_per_tensor = 8;  // picked at random; all when the tensor has no more
  std::uint64_t seed = 1;
};

struct GradientReport {
  double worst = 0;   // largest |difference quotient - gradient| / largest |gradient| of the tensor
  std::string where;  // "weight[3]: gradient 0.5, differences 0.7"
};

// The function is forward(tape, x) for a defined input x, weighted with random numbers into a scalar. Checks the
// gradient of x
// ("input") and those of `tensors`; leaves all values as they were. f32 limits the result to about 1e-3.
GradientReport check_gradients(RunContext& ctx, const Tensor& x,
                               const std::function<Value(Tape&, const Value&)>& forward,
                               std::vector<CheckedTensor> tensors, const GradientCheckOptions& options = {});

}  // namespace dtrun::runtime
