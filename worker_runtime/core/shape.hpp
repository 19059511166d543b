// The extents of a tensor, outermost first. A value of fixed size: no allocation.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace dtrun::runtime {

class Shape {
 public:
  static constexpr int kMaxRank = 6;

  Shape() = default;  // rank 0: one element
  Shape(std::initializer_list<std::int64_t> dims);
  // Throws ShapeError for more than kMaxRank dimensions, a negative extent, or a number of elements beyond 2^62.
  explicit Shape(std::span<const std::int64_t> dims);

  int rank() const noexcept { return rank_; }
  // Negative `dim` counts from the end, as in torch. Throws ShapeError when out of range.
  std::int64_t dim(int dim) const;
  std::int64_t operator[](int dim) const { return this->dim(dim); }
  std::int64_t numel() const noexcept;
  std::span<const std::int64_t> dims() const noexcept { return {dims_.data(), static_cast<std::size_t>(rank_)}; }
  std::string to_string() const;  // "[2, 3]"

  bool operator==(const Shape& other) const noexcept;

 private:
  std::array<std::int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

}  // namespace dtrun::runtime
