#include <fmt/format.h>

#include <cmath>

#include "worker_runtime/ops/gpu/gpu.hpp"
#include "worker_runtime/ops/gpu/on_device.hpp"
#include "worker_runtime/ops/gpu/sdpa.hpp"

namespace dtrun::runtime::ops::gpu {
namespace {

template <class T>
kernels::AttentionTensors<T> tensors_of(const AttentionPlaces& places, const Tensor& out) {
  const std::int64_t dim = out.dim(2) / places.heads;
  return {at<T>(*places.q),
          at<T>(*places.k) + places.k_offset,
          at<T>(*places.v) + places.v_offset,
          places.q_stride,
          places.kv_stride,
          out.dim(2),
          out.dim(0),
          out.dim(1),
          places.heads,
          places.kv_heads,
          dim,
          static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)))};
}

// Calls f with the number of elements of a head for which there is a kernel, as a type.
template <class Function>
void by_dim(std::int64_t dim, Function f) {
  if (dim <= 64) return f(std::integral_constant<int, 64>());
  if (dim <= 128) return f(std::integral_constant<int, 128>());
  if (dim <= 256) return f(std::integral_constant<int, 256>());
  throw ShapeError("ops", fmt::format("attention: heads of {} elements, expected at most 256 on a device", dim));
}

}  // namespace

void attention_forward(const AttentionPlaces& places, const Tensor& out, const Tensor& lse) {
  if (out.numel() == 0 || sdpa_forward(places, out, lse)) return;
  by_type(out, [&](auto type) {
    using T = decltype(type);
    const auto tensors = tensors_of<T>(places, out);
    by_dim(tensors.head_dim, [&](auto dim) {
      launch(device_of(out), kernels::AttentionForward<T, dim()>{tensors, at<T>(out), lse.device_data<float>()},
             {reads(*places.q), reads(*places.k), reads(*places.v), writes(out), writes(lse)});
    });
  });
}

void attention_backward(const AttentionPlaces& places, const Tensor& out, const Tensor& lse, const Tensor& dout,
                        const GroupedAttentionGrads& grads) {
  if (out.numel() == 0 || sdpa_backward(places, out, lse, dout, grads)) return;
  by_type(out, [&](auto type) {
    using T = decltype(type);
    const auto tensors = tensors_of<T>(places, out);
    const kernels::AttentionResult<T> result{at<T>(out), at<T>(dout), lse.device_data<float>()};
    const auto &q = *places.q, &k = *places.k, &v = *places.v;
    by_dim(tensors.head_dim, [&](auto dim) {
      launch(device_of(out), kernels::AttentionBackwardQueries<T, dim()>{tensors, result, at<T>(grads.dq)},
             {reads(q), reads(k), reads(v), reads(out), reads(lse), reads(dout), writes(grads.dq)});
      launch(device_of(out),
             kernels::AttentionBackwardKeys<T, dim()>{tensors, result, at<T>(grads.dk) + places.k_offset,
                                                      at<T>(grads.dv) + places.v_offset, false},
             {reads(q), reads(k), reads(v), reads(out), reads(lse), reads(dout), writes(grads.dk), writes(grads.dv)});
    });
  });
}

}  // namespace dtrun::runtime::ops::gpu
