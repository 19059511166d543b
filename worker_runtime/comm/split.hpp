// What every backend checks when a group is split.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace dtrun::runtime {

// This rank's place in `ranks`, or -1 when the list is empty. Throws ShapeError unless it holds different ranks of a
// group of `size`, this one among them.
int place_in_split(std::span<const int> ranks, int rank, int size, const std::string& name);
// Members compare it: the same list and name on all of them. Not negative.
std::int64_t split_hash(std::span<const int> ranks, const std::string& name);

}  // namespace dtrun::runtime
