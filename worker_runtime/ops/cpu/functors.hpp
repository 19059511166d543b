// The arithmetic of the element-wise ops on vectors: that of the kernels of a GPU (kernels/math.hpp).
#pragma once

#include "worker_runtime/kernels/math.hpp"
#include "worker_runtime/ops/cpu/simd.hpp"

namespace dtrun::runtime::ops::DTRUN_LEVEL {

using kernels::exp;
using kernels::gelu;
using kernels::gelu_derivative;
using kernels::silu;
using kernels::silu_derivative;

}  // namespace dtrun::runtime::ops::DTRUN_LEVEL
