#include "worker_runtime/ops/gpu/sdpa.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "worker_runtime/device/cudnn.hpp"
#include "worker_runtime/ops/gpu/on_device.hpp"

namespace dtrun::runtime::ops::gpu {
namespace {

constexpr std::int64_t kAlignment = 16;  // bytes, of what engines read and write
std::atomic<std::size_t> workspace_wanted{kWorkspaceWanted};

// Why cuDNN is not asked; empty when it is.
std::string why_not(Device& device, DType dtype, std::int64_t head_dim, std::int64_t time, bool backward) {
  if (dtype != DType::bf16) return fmt::format("cuDNN's are for bf16, this is {}", name_of(dtype));
  const Cudnn* const cudnn = device.cudnn();
  if (cudnn == nullptr) {
    const auto& why = device.apis().without_cudnn;
    return why.empty() ? "cuDNN is not used" : why;
  }
  const int major = device.properties().major;
  const int most = major == 9 ? 256 : 128;
  if (head_dim % 8 != 0 || head_dim > most)
    return fmt::format("heads of {} elements, cuDNN takes multiples of 8 up to {}", head_dim, most);
  if (time < 2) return "one token";
  if (cudnn->version() < 91600 && time % 128 != 0)
    return fmt::format("{} tokens, cuDNN {} takes multiples of 128", time, cudnn_version_text(cudnn->version()));
  if (backward && major >= 10) return fmt::format("on compute capability {}.x its bits are not known to repeat", major);
  return {};
}

bool aligned(const Tensor& x, std::int64_t offset = 0) {
  const auto* const data = static_cast<const std::byte*>(x.device_raw()) + offset * 2;
  return reinterpret_cast<std::uintptr_t>(data) % kAlignment == 0;
}

bool aligned(const AttentionPlaces& p, const Tensor& q, const Tensor& k, const Tensor& v) {
  const bool rows = (p.q_stride * 2) % kAlignment == 0 && (p.kv_stride * 2) % kAlignment == 0;
  return rows && aligned(q) && aligned(k, p.k_offset) && aligned(v, p.v_offset);
}

SdpaShape shape_of(const AttentionPlaces& p, const Tensor& out) {
  return {.batch = out.dim(0),
          .heads = p.heads,
          .kv_heads = p.kv_heads,
          .time = out.dim(1),
          .head_dim = out.dim(2) / p.heads,
          .q_stride = p.q_stride,
          .kv_stride = p.kv_stride,
          .out_stride = out.dim(2)};
}

Cudnn::Key key_of(bool backward, const SdpaShape& s) {
  return {backward ? 1 : 0, s.batch, s.heads, s.kv_heads, s.time, s.head_dim, s.q_stride, s.kv_stride, s.out_stride};
}

// Numbers that the graphs take from the host with each run.
struct Numbers {
  explicit Numbers(std::int64_t head_dim) : scale(static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)))) {}
  float scale;
  float masked = -std::numeric_limits<float>::infinity();
  float one = 1;
};

const std::byte* bf16_at(const Tensor& x, std::int64_t element) { return x.device_raw() + element * 2; }
const std::byte* f32_at(const Tensor& x, std::int64_t element) { return x.device_raw() + element * 4; }

std::size_t rounded_up(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

std::int64_t largest_divisor(std::int64_t of, std::int64_t most) {
  std::int64_t best = std::clamp<std::int64_t>(most, 1, of);
  while (of % best != 0) --best;
  return best;
}

}  // namespace

SdpaPart sdpa_backward_part(const SdpaShape& s, std::size_t wanted, std::size_t most) {
  // For each head the gradients of the scores, and where heads share keys their own dk and dv; all in bf16.
  const auto up = [](std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; };
  const std::int64_t own = s.heads == s.kv_heads ? 0 : 2 * s.time * s.head_dim;
  const std::int64_t of_head = 2 * (up(s.time, 64) * up(s.time, 128) + own);
  const std::int64_t of_group = s.heads / s.kv_heads * of_head, of_sequence = s.heads * of_head;
  const auto fit = static_cast<std::int64_t>(wanted);
  if (of_sequence <= fit) return {largest_divisor(s.batch, fit / of_sequence), s.kv_heads};
  if (of_group > static_cast<std::int64_t>(most)) return {};
  return {1, largest_divisor(s.kv_heads, fit / of_group)};
}

void set_sdpa_workspace_wanted(std::size_t bytes) { workspace_wanted.store(bytes); }

bool sdpa_forward(const AttentionPlaces& places, const Tensor& out, const Tensor& lse) {
  Device& device = device_of(out);
  const SdpaShape shape = shape_of(places, out);
  if (!why_not(device, out.dtype(), shape.head_dim, shape.time, false).empty()) return false;
  if (!aligned(places, *places.q, *places.k, *places.v) || !aligned(out)) return false;
  Cudnn& cudnn = *device.cudnn();
  const auto plan = cudnn.plan(
      key_of(false, shape), [&] { return sdpa_forward_graph(cudnn.api(), shape); }, kWorkspaceMost);
  if (plan == nullptr) return false;
  const Numbers numbers(shape.head_dim);
  using Ids = SdpaForwardIds;
  const CudnnArgument arguments[] = {{Ids::q, bf16_at(*places.q, 0)},
                                     {Ids::k, bf16_at(*places.k, places.k_offset)},
                                     {Ids::v, bf16_at(*places.v, places.v_offset)},
                                     {Ids::out, out.device_raw()},
                                     {Ids::lse, lse.device_raw()},
                                     {Ids::scale, &numbers.scale},
                                     {Ids::masked, &numbers.masked}};
  const auto bytes = plan->workspace_bytes();
  cudnn.run(*plan, arguments, bytes == 0 ? nullptr : device.scratch(bytes));
  return true;
}

bool sdpa_backward(const AttentionPlaces& p, const Tensor& out, const Tensor& lse, const Tensor& dout,
                   const GroupedAttentionGrads& grads) {
  Device& device = device_of(out);
  const SdpaShape whole = shape_of(p, out);
  if (!why_not(device, out.dtype(), whole.head_dim, whole.time, true).empty()) return false;
  if (!aligned(p, *p.q, *p.k, *p.v) || !aligned(p, grads.dq, grads.dk, grads.dv) || !aligned(out) || !aligned(dout))
    return false;
  const SdpaPart part = sdpa_backward_part(whole, workspace_wanted.load());
  if (part.batch == 0) return false;
  const std::int64_t group = whole.heads / whole.kv_heads;
  SdpaShape shape = whole;
  shape.batch = part.batch;
  shape.kv_heads = part.kv_heads;
  shape.heads = part.kv_heads * group;
  Cudnn& cudnn = *device.cudnn();
  const auto plan = cudnn.plan(
      key_of(true, shape), [&] { return sdpa_backward_graph(cudnn.api(), shape); }, kWorkspaceMost);
  if (plan == nullptr) return false;
  const auto own = rounded_up(plan->workspace_bytes());
  std::byte* const workspace =
      device.scratch(own + static_cast<std::size_t>(shape.batch * shape.heads * shape.time) * sizeof(float));
  const Numbers numbers(shape.head_dim);
  using Ids = SdpaBackwardIds;
  for (std::int64_t b = 0; b < whole.batch; b += shape.batch) {
    for (std::int64_t head = 0; head < whole.heads; head += shape.heads) {
      const auto at = [&](std::int64_t stride, std::int64_t first_head) {
        return b * whole.time * stride + first_head * whole.head_dim;
      };
      const std::int64_t q = at(p.q_stride, head), o = at(whole.out_stride, head);
      const std::int64_t kv = at(p.kv_stride, head / group), row = (b * whole.heads + head) * whole.time;
      const CudnnArgument arguments[] = {{Ids::q, bf16_at(*p.q, q)},
                                         {Ids::k, bf16_at(*p.k, p.k_offset + kv)},
                                         {Ids::v, bf16_at(*p.v, p.v_offset + kv)},
                                         {Ids::out, bf16_at(out, o)},
                                         {Ids::dout, bf16_at(dout, o)},
                                         {Ids::lse, f32_at(lse, row)},
                                         {Ids::dq, bf16_at(grads.dq, q)},
                                         {Ids::dk, bf16_at(grads.dk, p.k_offset + kv)},
                                         {Ids::dv, bf16_at(grads.dv, p.v_offset + kv)},
                                         {Ids::sums, workspace + own},
                                         {Ids::scale, &numbers.scale},
                                         {Ids::masked, &numbers.masked},
                                         {Ids::one, &numbers.one}};
      cudnn.run(*plan, arguments, own == 0 ? nullptr : workspace);
    }
  }
  return true;
}

std::string attention_engine(Device& device, DType dtype, std::int64_t head_dim, std::int64_t time) {
  const auto why = why_not(device, dtype, head_dim, time, false);
  if (!why.empty()) return fmt::format("own kernels ({})", why);
  const auto name = fmt::format("cuDNN {}", cudnn_version_text(device.cudnn()->version()));
  const auto why_backward = why_not(device, dtype, head_dim, time, true);
  return why_backward.empty() ? name : fmt::format("{} forward, own kernels backward ({})", name, why_backward);
}

}  // namespace dtrun::runtime::ops::gpu
