// The squares of elements on devices, for their exact sum (optim/clip.hpp).
#pragma once

#include <span>
#include <vector>

#include "worker_runtime/kernels/square_limbs.hpp"
#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime::ops {

// Of each piece of the tensors that live on a device, the sum of the squares; the others are left out. Waits for each
// device once. Throws ShapeError unless they are f32.
std::vector<kernels::SquareLimbs> squares_on_device(std::span<const Tensor> tensors);

}  // namespace dtrun::runtime::ops
