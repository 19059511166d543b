// A square as whole numbers of fixed units, so that sums of squares are exact in any order: what SquareSum (optim/)
// and its kernel share.
#pragma once

#include <cmath>
#include <cstdint>

#include "worker_runtime/kernels/target.hpp"

namespace dtrun::runtime::kernels {

// Limb k counts units of 2^(44 k - 110). A square below 2^22 is cut into three; each cut is exact. Sums of up to 2^18
// elements fit. Squares of elements below 2^-55 in magnitude count as zero.
struct SquareLimbs {
  static constexpr int kLimbs = 9;
  std::int64_t of[kLimbs] = {};
  std::int64_t not_finite = 0;  // bit 0: an infinity, bit 1: a nan

  DTRUN_HD SquareLimbs& operator+=(const SquareLimbs& other) {
    for (int k = 0; k < kLimbs; ++k) of[k] += other.of[k];
    not_finite |= other.not_finite;
    return *this;
  }
  DTRUN_HD friend SquareLimbs operator+(SquareLimbs a, const SquareLimbs& b) { return a += b; }

  // The three smallest units, and those above which the other limbs begin.
  static constexpr double kSmall = 0x1p22;
  DTRUN_HD static constexpr double unit(int k) {
    double value = 0x1p-110;
    for (int i = 0; i < k; ++i) value *= 0x1p44;
    return value;
  }
  // Adding and subtracting 1.5 * 2^52 units rounds to a whole number of units.
  DTRUN_HD static constexpr double rounder(double unit) { return 1.5 * 0x1p52 * unit; }

  DTRUN_HD static SquareLimbs of_square(double square) {
    SquareLimbs result;
    if (!(square - square == 0.0)) {
      result.not_finite = square != square ? 2 : 1;
      return result;
    }
    if (square >= kSmall) {
      for (int k = kLimbs - 1; k >= 3 && square >= kSmall; --k) {
        const double whole = floor(square / unit(k));
        result.of[k] = static_cast<std::int64_t>(whole);
        square -= whole * unit(k);
      }
    }
    for (int k = 2; k >= 0; --k) {
      const double whole = (square + rounder(unit(k))) - rounder(unit(k));
      result.of[k] = static_cast<std::int64_t>(whole / unit(k));
      square -= whole;
    }
    return result;
  }
};

}  // namespace dtrun::runtime::kernels
