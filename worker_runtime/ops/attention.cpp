#include "worker_runtime/ops/attention.hpp"

#include <fmt/format.h>

#include <cmath>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/ops/checks.hpp"
#include "worker_runtime/ops/cpu/kernel_table.hpp"
#include "worker_runtime/ops/threads.hpp"
#include "worker_runtime/ops/workspace.hpp"

namespace dtrun::runtime::ops {
namespace {

struct Extents {
  std::int64_t batch;
  std::int64_t time;
  std::int64_t d;
  std::int64_t head_dim;
};

Extents check(std::string_view op, const Tensor& qkv, int heads, const Tensor& out, const Tensor& lse) {
  expect_dtype(op, "out", out, DType::f32);
  if (out.rank() != 3)
    throw ShapeError("ops", fmt::format("{}: out is {}, expected [B, T, d]", op, out.shape().to_string()));
  const Extents e{out.dim(0), out.dim(1), out.dim(2), heads > 0 ? out.dim(2) / heads : 0};
  if (heads < 1 || e.d % heads != 0) {
    throw ShapeError("ops", fmt::format("{}: {} heads for a width of {}, expected a divisor of it", op, heads, e.d));
  }
  expect_shape(op, "qkv", qkv, Shape{e.batch, e.time, 3 * e.d});
  expect_shape(op, "lse", lse, Shape{e.batch, heads, e.time});
  return e;
}

// What forward and backward tell the kernel about head `index` = b * heads + h.
AttentionHead head_at(const Extents& e, int heads, std::int64_t index, const Tensor& qkv, const Tensor& out,
                      const Tensor& lse) {
  const std::int64_t column = index % heads * e.head_dim;
  const std::int64_t token = index / heads * e.time;
  const float* const q = qkv.data<float>() + token * 3 * e.d + column;
  AttentionHead head;
  head.q = q;
  head.k = q + e.d;
  head.v = q + 2 * e.d;
  head.stride = 3 * e.d;
  head.out = out.data<float>() + token * e.d + column;
  head.out_stride = e.d;
  head.lse = lse.data<float>() + index * e.time;
  head.time = e.time;
  head.head_dim = e.head_dim;
  head.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(e.head_dim)));
  head.workspace = workspace(Scratch::kernel, kernels().attention_workspace(e.time, e.head_dim));
  return head;
}

}  // namespace

void attention_forward(const Tensor& qkv, int heads, const Tensor& out, const Tensor& lse) {
  const Extents e = check("attention_forward", qkv, heads, out, lse);
  if (out.numel() == 0) return;
  parallel_chunks(e.batch * heads,
                  [&](std::int64_t index) { kernels().attention_forward(head_at(e, heads, index, qkv, out, lse)); });
}

void attention_backward(const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& dout, int heads,
                        const Tensor& dqkv) {
  const Extents e = check("attention_backward", qkv, heads, out, lse);
  expect_shape("attention_backward", "dout", dout, out.shape());
  expect_shape("attention_backward", "dqkv", dqkv, qkv.shape());
  if (out.numel() == 0) return;
  parallel_chunks(e.batch * heads, [&](std::int64_t index) {
    AttentionHead head = head_at(e, heads, index, qkv, out, lse);
    head.dout = dout.data<float>() + (head.out - out.data<float>());
    head.dq = dqkv.data<float>() + (head.q - qkv.data<float>());
    head.dk = head.dq + e.d;
    head.dv = head.dq + 2 * e.d;
    kernels().attention_backward(head);
  });
}

}  // namespace dtrun::runtime::ops
