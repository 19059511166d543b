// What ranks compare before an operation moves data, and how messages show it.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "worker_runtime/comm/collective.hpp"

namespace dtrun::runtime {

// The 32 bytes that must be equal on all ranks.
struct Descriptor {
  std::uint64_t sequence;
  std::uint64_t count;  // elements
  std::int32_t root;
  std::uint32_t action;
  std::uint8_t op, dtype, reduce, reserved;
  std::uint32_t reserved2;
};
static_assert(sizeof(Descriptor) == 32);

// `count`: elements of one rank's part of the operation.
Descriptor descriptor_of(const Collective& call, std::uint64_t sequence, std::uint64_t count, DType dtype,
                         const CommAction& action);

// "all_reduce sum f32 x 4 (step 7, REDUCE blocks.1 action 9)". Peers wrote these bytes: nothing is trusted to be in
// range.
std::string describe(const Descriptor& descriptor, std::array<char, 48> label);

}  // namespace dtrun::runtime
