// One 64-bit number for a whole set of parameters: equal numbers mean equal training results, bit by bit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker_runtime/checkpoint/safetensors.hpp"

namespace dtrun::runtime {

// The same hash of tensors that come one after another, in name order.
class TensorHash {
 public:
  TensorHash();
  TensorHash(const TensorHash&) = delete;
  TensorHash& operator=(const TensorHash&) = delete;
  ~TensorHash();
  void add(const std::string& name, const Tensor& tensor);
  std::uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// xxh64 (seed 0) over name, a zero byte and the elements of each tensor, in name order. Whole tensors, not shards.
std::uint64_t hash_tensors(std::vector<NamedTensor> tensors);
// 16 hexadecimal digits, as printed in reports.
std::string hash_text(std::uint64_t hash);

}  // namespace dtrun::runtime
