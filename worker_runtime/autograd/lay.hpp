// Lay: how a value lies over the ranks of tensor parallelism (nn/tensor_parallel.hpp). A value.
#pragma once

#include <cstdint>
#include <string>

namespace dtrun::runtime {

struct Lay {
  enum class Kind : std::uint8_t {
    whole,    // every rank has all of it, the same bits; so also without tensor parallelism
    columns,  // each has a part of the last dimension
    sequence  // each has a part of dimension 1, the places of a sequence
  };
  Kind kind = Kind::whole;
  std::int64_t extent = 0;  // of the dimension that is cut, in the whole value

  static Lay columns(std::int64_t extent) { return {Kind::columns, extent}; }
  static Lay sequence(std::int64_t extent) { return {Kind::sequence, extent}; }
  bool is_whole() const { return kind == Kind::whole; }
  bool is_columns() const { return kind == Kind::columns; }
  bool is_sequence() const { return kind == Kind::sequence; }
  std::string to_string() const;  // "whole", "cut into columns", "cut along the sequence"
  bool operator==(const Lay&) const = default;
};

// How much of its inputs one element of a node's result needs. Says which cuts a node may be given: any cut for
// `element`, along the sequence for `row`, none for `all`.
enum class Reach : std::uint8_t { element, row, all };

}  // namespace dtrun::runtime
