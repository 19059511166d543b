// Graphs of the fake cuDNN: what their operations must look like, and what they compute.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "worker_runtime/device/cudnn_api.hpp"

namespace dtrun::runtime::ops::gpu {

struct CudnnTensor {
  std::int64_t id = 0;
  std::array<std::int64_t, 4> extents{}, strides{};
  cudnn::Type type = cudnn::Type::f32;
  std::int64_t alignment = 0;
  bool is_virtual = false, is_value = false;

  bool in_memory() const { return !is_virtual && !is_value; }
  std::size_t element_bytes() const { return type == cudnn::Type::bf16 ? 2 : 4; }
  // From the first element to behind the last one.
  std::int64_t span() const;
  bool operator==(const CudnnTensor&) const = default;
};

struct CudnnOperation {
  cudnn::Kind kind = cudnn::Kind::matmul_operation;
  cudnn::Pointwise mode = cudnn::Pointwise::add;
  cudnn::Reduce reduce = cudnn::Reduce::add;
  std::int64_t axis = -1;
  std::int64_t x = 0, b = 0, t = 0, y = 0;  // ids, 0: none; a product's are x, b and y
};

struct CudnnFakeGraph {
  std::map<std::int64_t, CudnnTensor> tensors;
  std::vector<CudnnOperation> operations;

  // What is wrong with it; empty: nothing. Operations are in an order in which they can run.
  std::string problem() const;
  bool writes(std::int64_t id) const;
  // What an engine of it would want.
  std::size_t workspace_bytes() const;
  // Whether there is an engine for it.
  bool has_engine() const;
  // `memory`: where tensors and numbers are, by id.
  void run(const std::map<std::int64_t, std::byte*>& memory) const;
};

}  // namespace dtrun::runtime::ops::gpu
