// The checks of gpu_check. Each returns what its row of the table says, and throws when something is wrong.
#pragma once

#include <string>
#include <vector>

#include "worker_runtime/comm/nccl/nccl_api.hpp"
#include "worker_runtime/device/device.hpp"
#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime::gpu_check {

std::string describe(Device& device);

// Every op of tests/unit/worker_runtime/kernels/op_cases.hpp, in f32 and bf16: the bits of the CPU at level twin, in
// bf16 those of its f32 results rounded. Products are for products_equal_the_host.
std::string kernels_have_the_bits_of_their_twins(Device& device);
std::string squares_are_summed_exactly(Device& device);
// Whether the checks so far have launched every kernel of the library. Names those they have not.
std::string every_kernel_was_launched();
// The table of kernels that counts for it.
const cuda::KernelApi& counting(const cuda::KernelApi& kernels);

std::string products_equal_the_host(Device& device);
// Products as large as those of a model: how fast they are.
std::string speed_of_products(Device& device, DType dtype, bool tf32);

// Attention in bf16 by a device that has cuDNN, beside our kernels on one that has not: results, that they repeat,
// speed.
std::string cudnn_attention_is_ours(Device& ours, Device& cudnn);
std::string speed_of_attention(Device& ours, Device& cudnn);

std::string events_order_streams(Device& device);
std::string copies_arrive(Device& device);
std::string too_much_memory_is_refused_by_name(Device& device);

// Ranks that are threads (comm/loopback), each with streams of its own on this device: collectives and kernels overlap.
std::string ranks_share_the_device(Device& device, int rounds);
// One rank: set-up, split, a sum through each, abort. `file`: where the table is from.
std::string nccl_of_one_rank(Device& device, const nccl::NcclApi& api, const std::string& file);

// A copy on the device, with memory of its own.
Tensor on_device(Device& device, const Tensor& x);

}  // namespace dtrun::runtime::gpu_check
