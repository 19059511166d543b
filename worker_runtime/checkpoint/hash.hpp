// One 64-bit number for a whole set of parameters: equal numbers mean equal training results, bit by bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "worker_runtime/checkpoint/safetensors.hpp"

namespace dtrun::runtime {

// xxh64 (seed 0) of bytes that come one after another.
class ByteHash {
 public:
  ByteHash();
  ByteHash(const ByteHash&) = delete;
  ByteHash& operator=(const ByteHash&) = delete;
  ~ByteHash();
  void add(std::span<const std::byte> bytes);
  std::uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};
std::uint64_t hash_bytes(std::span<const std::byte> bytes);

// The hash of hash_tensors() of tensors that come one after another, in name order.
class TensorHash {
 public:
  void add(const std::string& name, const Tensor& tensor);
  std::uint64_t value() const { return hash_.value(); }

 private:
  ByteHash hash_;
};

// xxh64 (seed 0) over name, a zero byte and the elements of each tensor, in name order. Whole tensors, not shards.
std::uint64_t hash_tensors(std::vector<NamedTensor> tensors);
// 16 hexadecimal digits, as printed in reports.
std::string hash_text(std::uint64_t hash);
// Of such a text; nothing for any other.
std::optional<std::uint64_t> parse_hash(std::string_view text);

}  // namespace dtrun::runtime
