// Scratch memory of the ops: per thread and per purpose one block that only grows, so that a training step allocates
// nothing. Not part of any arena's account; workspace_bytes() tells how much there is.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dtrun::runtime::ops {

enum class Scratch : std::uint8_t { packed_a, packed_b, sums, kernel };

// At least `floats` uninitialised floats, 64-byte aligned, of this thread, until it asks for the same purpose again.
// Throws std::bad_alloc.
float* workspace(Scratch purpose, std::int64_t floats);
// Bytes held by all threads together.
std::size_t workspace_bytes() noexcept;

}  // namespace dtrun::runtime::ops
