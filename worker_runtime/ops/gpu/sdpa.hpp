// Attention by cuDNN, where it is there and takes the shape; the kernels of ops/gpu/attention.cpp run otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "worker_runtime/core/dtype.hpp"
#include "worker_runtime/device/device.hpp"
#include "worker_runtime/ops/gpu/gpu.hpp"
#include "worker_runtime/ops/gpu/sdpa_graph.hpp"

namespace dtrun::runtime::ops::gpu {

// On the current stream; false, and nothing is done, when cuDNN does not do it. Throws DeviceError when it fails in
// what it said that it would do.
bool sdpa_forward(const AttentionPlaces& places, const Tensor& out, const Tensor& lse);
bool sdpa_backward(const AttentionPlaces& places, const Tensor& out, const Tensor& lse, const Tensor& dout,
                   const GroupedAttentionGrads& grads);

// Backward runs for parts of the batch, or of one sequence's heads, one after another, so that the workspace stays
// small: kWorkspaceWanted bytes where that can be, kWorkspaceMost at most. Null parts: even one group of heads is too
// much.
inline constexpr std::size_t kWorkspaceWanted = std::size_t{256} << 20;
inline constexpr std::size_t kWorkspaceMost = std::size_t{1} << 30;
struct SdpaPart {
  std::int64_t batch = 0, kv_heads = 0;
};
SdpaPart sdpa_backward_part(const SdpaShape& shape, std::size_t wanted = kWorkspaceWanted,
                            std::size_t most = kWorkspaceMost);

// Instead of kWorkspaceWanted; for tests.
void set_sdpa_workspace_wanted(std::size_t bytes);

// What attention of this type and shape runs on: "cuDNN 9.19", "own kernels (why)". For people.
std::string attention_engine(Device& device, DType dtype, std::int64_t head_dim, std::int64_t time);

}  // namespace dtrun::runtime::ops::gpu
