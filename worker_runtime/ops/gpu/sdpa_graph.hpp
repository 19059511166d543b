// Causal attention as graphs of cuDNN's operations, in the forms that its attention engines know.
#pragma once

#include <cstdint>

#include "worker_runtime/device/cudnn_graph.hpp"

namespace dtrun::runtime::ops::gpu {

// Heads of bf16 that lie side by side in each token; strides from one token to the next, in elements. kv_heads divides
// heads.
struct SdpaShape {
  std::int64_t batch = 1, heads = 1, kv_heads = 1, time = 1, head_dim = 1;
  std::int64_t q_stride = 1, kv_stride = 1, out_stride = 1;
};

// Ids of the graphs' tensors, by which their memory is named.
struct SdpaForwardIds {
  enum : std::int64_t { q = 1, k, v, out, lse, scale, masked };
};
struct SdpaBackwardIds {
  // `sums`: f32 [batch, heads, time], scratch.
  enum : std::int64_t { q = 1, k, v, out, dout, lse, dq, dk, dv, sums, scale, masked, one };
};

// out = softmax(scale q k^T where keys are not later than the query, else `masked`) v, lse the log of the denominators.
CudnnGraph sdpa_forward_graph(const CudnnApi& api, const SdpaShape& shape);

// The gradients lie as q, k and v do. dq is written by one product over all keys, so that cuDNN keeps the [time, time]
// gradients of the scores in its workspace (2 bytes each) instead of adding up parts of dq as they come: results repeat
// bit by bit.
CudnnGraph sdpa_backward_graph(const CudnnApi& api, const SdpaShape& shape);

}  // namespace dtrun::runtime::ops::gpu
