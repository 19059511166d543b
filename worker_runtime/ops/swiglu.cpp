#include "worker_runtime/ops/swiglu.hpp"

#include "worker_runtime/ops/checks.hpp"
#include "worker_runtime/ops/cpu/kernel_table.hpp"
#include "worker_runtime/ops/gpu/gpu.hpp"
#include "worker_runtime/ops/pieces.hpp"

namespace dtrun::runtime::ops {

void swiglu_forward(const Tensor& gate, const Tensor& up, const Tensor& y) {
  expect_dtype("swiglu_forward", "gate", gate, DType::f32);
  expect_shape("swiglu_forward", "up", up, gate.shape());
  expect_shape("swiglu_forward", "y", y, gate.shape());
  if (ran_elsewhere(
          "swiglu_forward", [&] { gpu::swiglu_forward(gate, up, y); }, gate, up, y))
    return;
  const float* const from_gate = gate.data<float>();
  const float* const from_up = up.data<float>();
  float* const to = y.data<float>();
  for_pieces(gate.numel(), [&](std::int64_t begin, std::int64_t count) {
    kernels().swiglu_forward(from_gate + begin, from_up + begin, to + begin, count);
  });
}

void swiglu_backward(const Tensor& gate, const Tensor& up, const Tensor& dy, const Tensor& dgate, const Tensor& dup) {
  expect_dtype("swiglu_backward", "gate", gate, DType::f32);
  for (const auto& [name, tensor] : {std::pair("up", &up), {"dy", &dy}, {"dgate", &dgate}, {"dup", &dup}})
    expect_shape("swiglu_backward", name, *tensor, gate.shape());
  if (ran_elsewhere(
          "swiglu_backward", [&] { gpu::swiglu_backward(gate, up, dy, dgate, dup); }, gate, up, dy, dgate, dup))
    return;
  for_pieces(gate.numel(), [&](std::int64_t begin, std::int64_t count) {
    kernels().swiglu_backward(gate.data<float>() + begin, up.data<float>() + begin, dy.data<float>() + begin,
                              dgate.data<float>() + begin, dup.data<float>() + begin, count);
  });
}

}  // namespace dtrun::runtime::ops
