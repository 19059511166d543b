// Attention as Llama has it: rotary positions and keys that several heads share.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "worker_runtime/nn/module.hpp"
#include "worker_runtime/ops/rope.hpp"

namespace dtrun::runtime {

// The cosines and sines of rotary positions (ops/rope.hpp), made when first asked for and shared by the blocks of a
// model. Its memory is no activation and no parameter, and in no arena's account: head_dim floats per position and
// place. One thread.
class RotaryTable {
 public:
  RotaryTable(double theta, std::int64_t head_dim, const ops::RopeScaling& scaling = {})
      : theta_(theta), head_dim_(head_dim), scaling_(scaling) {}
  // [positions or more, head_dim], in host memory or on `device`, which outlives this.
  const Tensor& at_least(std::int64_t positions, DeviceMemory* device = nullptr);
  // The same without elements, for a dry run. Nothing is kept.
  Tensor abstract(std::int64_t positions) const { return Tensor::abstract({positions, head_dim_}, DType::f32); }

 private:
  double theta_;
  std::int64_t head_dim_;
  ops::RopeScaling scaling_;
  std::map<DeviceMemory*, Tensor> tables_;
};

// x[B, T, heads * head_dim], every head turned by its position.
Value rotary(Tape& tape, const Value& x, const std::shared_ptr<RotaryTable>& table);

// Causal attention of q[B, T, heads * D] with k and v[B, T, kv_heads * D], see ops/attention.hpp. kv_heads = heads is
// plain multi-head attention.
Value grouped_attention(Tape& tape, const Value& q, const Value& k, const Value& v, std::int64_t heads,
                        std::int64_t kv_heads);

}  // namespace dtrun::runtime
