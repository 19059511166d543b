// The elements of a piece of a tensor as ranges of the whole tensor, in order: what makes loading under another layout
// a merge of two sorted lists.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "worker_runtime/ops/random.hpp"

namespace dtrun::runtime {

// `count` elements that are neighbours in the whole tensor and in the piece.
struct Run {
  std::int64_t global = 0;  // number of the first one in the whole tensor, row-major
  std::int64_t count = 0;
  std::int64_t local = 0;  // its number in the piece

  std::int64_t end() const noexcept { return global + count; }
  bool operator==(const Run&) const = default;
};

// Why `count` elements at `where` are no part of a tensor of `numel` elements; empty when they are. Safe for any
// numbers.
std::string placement_fault(const ops::GlobalIndex& where, std::int64_t count, std::int64_t numel);

// The same piece behind its first `count` elements.
ops::GlobalIndex skip_elements(ops::GlobalIndex where, std::int64_t count);

// Computed when asked for: a piece has as many runs as rows, and no list of them is ever made. `where` and `count` have
// no placement_fault.
class Runs {
 public:
  Runs(ops::GlobalIndex where, std::int64_t count);

  std::int64_t size() const noexcept { return size_; }
  Run operator[](std::int64_t number) const noexcept;
  // The number of the first run that has an element at or behind `global`; size() when none has.
  std::int64_t first_reaching(std::int64_t global) const noexcept;

 private:
  std::int64_t first_ = 0;   // where row 0 begins, also when the piece begins in the middle of it
  std::int64_t length_ = 0;  // of a row
  std::int64_t stride_ = 0;
  std::int64_t skip_ = 0;  // elements of row 0 before the piece, fewer than a row
  std::int64_t count_ = 0;
  std::int64_t size_ = 0;
};

// Calls `found` with each range that both have: count, its number in the whole tensor, in `a` and in `b`. In order.
template <class Found>
void for_each_common(const Runs& a, const Runs& b, Found&& found) {
  for (std::int64_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const Run x = a[i], y = b[j];
    const auto from = std::max(x.global, y.global), to = std::min(x.end(), y.end());
    if (from < to) {
      found(to - from, from, x.local + from - x.global, y.local + from - y.global);
      x.end() <= y.end() ? ++i : ++j;
    } else if (x.end() <= y.global) {
      i = a.first_reaching(y.global);
    } else {
      j = b.first_reaching(x.global);
    }
  }
}

// Elements of a tensor that none of its pieces has, or that two have.
struct CoverageFault {
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool twice = false;

  std::string text() const;  // "elements 3 to 8 are missing"
};
// The first one; nothing when each of the `numel` elements is in exactly one piece.
std::optional<CoverageFault> find_coverage_fault(std::span<const Runs> pieces, std::int64_t numel);

}  // namespace dtrun::runtime
