#include "worker_runtime/ops/attention.hpp"

#include <fmt/format.h>

#include <cmath>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/ops/checks.hpp"
#include "worker_runtime/ops/cpu/kernel_table.hpp"
#include "worker_runtime/ops/gpu/gpu.hpp"
#include "worker_runtime/ops/threads.hpp"
#include "worker_runtime/ops/workspace.hpp"

namespace dtrun::runtime::ops {
namespace {

// Where q, k and v lie: side by side in one tensor, or in three. Pointers at head 0 of token 0.
struct Layout {
  std::int64_t batch = 0, time = 0;
  std::int64_t heads = 1, kv_heads = 1, head_dim = 0;
  const float *q = nullptr, *k = nullptr, *v = nullptr;
  std::int64_t q_stride = 0, kv_stride = 0;  // elements from one token to the next
  Where place = Where::host;
  gpu::AttentionPlaces on_device;

  std::int64_t width() const { return heads * head_dim; }
  std::int64_t group() const { return heads / kv_heads; }
  std::int64_t q_at(std::int64_t b, std::int64_t head) const { return b * time * q_stride + head * head_dim; }
  std::int64_t kv_at(std::int64_t b, std::int64_t head) const {
    return b * time * kv_stride + head / group() * head_dim;
  }
};

// out[B, T, d] with `heads` a divisor of d.
Layout check_out(std::string_view op, const Tensor& out, int heads, const Tensor& lse) {
  expect_dtype(op, "out", out, DType::f32);
  if (out.rank() != 3)
    throw ShapeError("ops", fmt::format("{}: out is {}, expected [B, T, d]", op, out.shape().to_string()));
  if (heads < 1 || out.dim(2) % heads != 0) {
    throw ShapeError("ops",
                     fmt::format("{}: {} heads for a width of {}, expected a divisor of it", op, heads, out.dim(2)));
  }
  Layout layout;
  layout.batch = out.dim(0);
  layout.time = out.dim(1);
  layout.heads = layout.kv_heads = heads;
  layout.head_dim = out.dim(2) / heads;
  expect_shape(op, "lse", lse, Shape{layout.batch, layout.heads, layout.time});
  return layout;
}

Layout check(std::string_view op, const Tensor& qkv, int heads, const Tensor& out, const Tensor& lse) {
  Layout layout = check_out(op, out, heads, lse);
  const std::int64_t d = layout.width();
  expect_shape(op, "qkv", qkv, Shape{layout.batch, layout.time, 3 * d});
  layout.q_stride = layout.kv_stride = 3 * d;
  layout.place = where_are(op, qkv, out, lse);
  layout.on_device = {.q = &qkv,
                      .k = &qkv,
                      .v = &qkv,
                      .k_offset = d,
                      .v_offset = 2 * d,
                      .q_stride = 3 * d,
                      .kv_stride = 3 * d,
                      .heads = heads,
                      .kv_heads = heads};
  if (layout.place != Where::host) return layout;
  layout.q = qkv.data<float>();
  layout.k = layout.q + d;
  layout.v = layout.k + d;
  return layout;
}

Layout check(std::string_view op, const Tensor& q, const Tensor& k, const Tensor& v, int heads, int kv_heads,
             const Tensor& out, const Tensor& lse) {
  Layout layout = check_out(op, out, heads, lse);
  if (kv_heads < 1 || heads % kv_heads != 0) {
    throw ShapeError(
        "ops", fmt::format("{}: {} heads of keys for {} of queries, expected a divisor of them", op, kv_heads, heads));
  }
  layout.kv_heads = kv_heads;
  layout.q_stride = layout.width();
  layout.kv_stride = layout.kv_heads * layout.head_dim;
  expect_shape(op, "q", q, out.shape());
  const Shape kv{layout.batch, layout.time, layout.kv_stride};
  expect_shape(op, "k", k, kv);
  expect_shape(op, "v", v, kv);
  layout.place = where_are(op, q, k, v, out, lse);
  layout.on_device = {.q = &q,
                      .k = &k,
                      .v = &v,
                      .q_stride = layout.q_stride,
                      .kv_stride = layout.kv_stride,
                      .heads = heads,
                      .kv_heads = kv_heads};
  if (layout.place != Where::host) return layout;
  layout.q = q.data<float>();
  layout.k = k.data<float>();
  layout.v = v.data<float>();
  return layout;
}

// What forward and backward tell the kernel about one head.
AttentionHead head_at(const Layout& layout, std::int64_t b, std::int64_t h, const Tensor& out, const Tensor& lse) {
  AttentionHead head;
  head.q = layout.q + layout.q_at(b, h);
  head.k = layout.k + layout.kv_at(b, h);
  head.v = layout.v + layout.kv_at(b, h);
  head.q_stride = layout.q_stride;
  head.kv_stride = layout.kv_stride;
  head.out = out.data<float>() + b * layout.time * layout.width() + h * layout.head_dim;
  head.out_stride = layout.width();
  head.lse = lse.data<float>() + (b * layout.heads + h) * layout.time;
  head.time = layout.time;
  head.head_dim = layout.head_dim;
  head.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(layout.head_dim)));
  head.workspace = workspace(Scratch::kernel, kernels().attention_workspace(layout.time, layout.head_dim));
  return head;
}

void forward(const Layout& layout, const Tensor& out, const Tensor& lse) {
  if (layout.place == Where::device) return gpu::attention_forward(layout.on_device, out, lse);
  if (out.numel() == 0 || layout.place == Where::abstract) return;
  parallel_chunks(layout.batch * layout.heads, [&](std::int64_t index) {
    kernels().attention_forward(head_at(layout, index / layout.heads, index % layout.heads, out, lse));
  });
}

// Heads that share keys belong to one chunk: they add to the same dk and dv. These point at head 0 of token 0.
void backward(const Layout& layout, const Tensor& out, const Tensor& lse, const Tensor& dout, float* dq, float* dk,
              float* dv) {
  if (out.numel() == 0) return;
  parallel_chunks(layout.batch * layout.kv_heads, [&](std::int64_t index) {
    const std::int64_t b = index / layout.kv_heads;
    const std::int64_t first = index % layout.kv_heads * layout.group();
    for (std::int64_t h = first; h < first + layout.group(); ++h) {
      AttentionHead head = head_at(layout, b, h, out, lse);
      head.dout = dout.data<float>() + (head.out - out.data<float>());
      head.dq = dq + layout.q_at(b, h);
      head.dk = dk + layout.kv_at(b, h);
      head.dv = dv + layout.kv_at(b, h);
      head.add_kv = h > first;
      kernels().attention_backward(head);
    }
  });
}

}  // namespace

void attention_forward(const Tensor& qkv, int heads, const Tensor& out, const Tensor& lse) {
  forward(check("attention_forward", qkv, heads, out, lse), out, lse);
}

void attention_backward(const Tensor& qkv, const Tensor& out, const Tensor& lse, const Tensor& dout, int heads,
                        const Tensor& dqkv) {
  constexpr std::string_view kOp = "attention_backward";
  const Layout layout = check(kOp, qkv, heads, out, lse);
  expect_shape(kOp, "dout", dout, out.shape());
  expect_shape(kOp, "dqkv", dqkv, qkv.shape());
  if (ran_elsewhere(
          kOp,
          [&] {
            gpu::attention_backward(layout.on_device, out, lse, dout, {dqkv, dqkv, dqkv});
          },
          qkv, dout, dqkv))
    return;
  float* const dq = dqkv.data<float>();
  backward(layout, out, lse, dout, dq, dq + layout.width(), dq + 2 * layout.width());
}

void grouped_attention_forward(const Tensor& q, const Tensor& k, const Tensor& v, int heads, int kv_heads,
                               const Tensor& out, const Tensor& lse) {
  forward(check("grouped_attention_forward", q, k, v, heads, kv_heads, out, lse), out, lse);
}

void grouped_attention_backward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse,
                                const Tensor& dout, int heads, int kv_heads, const GroupedAttentionGrads& grads) {
  constexpr std::string_view kOp = "grouped_attention_backward";
  const Layout layout = check(kOp, q, k, v, heads, kv_heads, out, lse);
  expect_shape(kOp, "dout", dout, out.shape());
  expect_shape(kOp, "dq", grads.dq, q.shape());
  expect_shape(kOp, "dk", grads.dk, k.shape());
  expect_shape(kOp, "dv", grads.dv, v.shape());
  if (ran_elsewhere(
          kOp, [&] { gpu::attention_backward(layout.on_device, out, lse, dout, grads); }, q, dout, grads.dq, grads.dk,
          grads.dv))
    return;
  backward(layout, out, lse, dout, grads.dq.data<float>(), grads.dk.data<float>(), grads.dv.data<float>());
}

}  // namespace dtrun::runtime::ops
