// The gated activation of Llama's MLP: silu(gate) * up, silu(x) = x / (1 + e^-x) (Shazeer 2020).
#pragma once

#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime::ops {

// y = silu(gate) * up, equal shapes; y may be gate or up.
void swiglu_forward(const Tensor& gate, const Tensor& up, const Tensor& y);

// dgate = dy * up * silu'(gate), dup = dy * silu(gate). One of them may be dy.
void swiglu_backward(const Tensor& gate, const Tensor& up, const Tensor& dy, const Tensor& dgate, const Tensor& dup);

}  // namespace dtrun::runtime::ops
