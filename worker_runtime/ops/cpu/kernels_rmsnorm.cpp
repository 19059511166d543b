#include "worker_runtime/ops/cpu/kernels.hpp"
#include "worker_runtime/ops/cpu/rows.hpp"

namespace dtrun::runtime::ops::DTRUN_LEVEL {
namespace {

void forward_row(const float* x, const float* gamma, float eps, std::int64_t d, float* y, float* rstd) {
  VecF squares{};
  const auto add_square = [&](VecF value) { squares += value * value; };
  for_vectors(
      d, [&](std::int64_t i) { add_square(load(x + i)); },
      [&](std::int64_t i, std::int64_t c) { add_square(load_some(x + i, c)); });
  const float r = 1.0F / __builtin_sqrtf(sum(squares) / static_cast<float>(d) + eps);
  for_vectors(
      d, [&](std::int64_t i) { store(y + i, load(x + i) * r * load(gamma + i)); },
      [&](std::int64_t i, std::int64_t c) { store_some(y + i, load_some(x + i, c) * r * load_some(gamma + i, c), c); });
  *rstd = r;
}

// dx = rstd (g - xhat mean(g xhat)), g = dy gamma, xhat = x rstd.
void backward_row(const float* dy, const float* x, const float* gamma, float r, std::int64_t d, float* dx,
                  bool add_to) {
  VecF products{};
  for_vectors(
      d, [&](std::int64_t i) { products += load(dy + i) * load(gamma + i) * (load(x + i) * r); },
      [&](std::int64_t i, std::int64_t c) {
        products += load_some(dy + i, c) * load_some(gamma + i, c) * (load_some(x + i, c) * r);
      });
  const float mean = sum(products) / static_cast<float>(d);
  const auto value = [&](VecF g, VecF at) { return rounded((g - at * r * mean) * r); };
  for_vectors(
      d,
      [&](std::int64_t i) {
        const VecF result = value(load(dy + i) * load(gamma + i), load(x + i));
        store(dx + i, add_to ? load(dx + i) + result : result);
      },
      [&](std::int64_t i, std::int64_t c) {
        const VecF result = value(load_some(dy + i, c) * load_some(gamma + i, c), load_some(x + i, c));
        store_some(dx + i, add_to ? load_some(dx + i, c) + result : result, c);
      });
}

}  // namespace

void rmsnorm_forward(const float* x, const float* gamma, float eps, std::int64_t rows, std::int64_t d, float* y,
                     float* rstd) {
  for (std::int64_t row = 0; row < rows; ++row) forward_row(x + row * d, gamma, eps, d, y + row * d, rstd + row);
}

void rmsnorm_backward_input(const float* dy, const float* x, const float* gamma, const float* rstd, std::int64_t rows,
                            std::int64_t d, float* dx, bool add_to) {
  for (std::int64_t row = 0; row < rows; ++row)
    backward_row(dy + row * d, x + row * d, gamma, rstd[row], d, dx + row * d, add_to);
}

void rmsnorm_backward_weight(const float* dy, const float* x, const float* rstd, std::int64_t rows, std::int64_t d,
                             std::int64_t cols, float* dgamma) {
  constexpr int kVectors = 4;  // side by side, so that whole cache lines are used at every level
  std::int64_t i = 0;
  for (; i + kVectors * kWidth <= cols; i += kVectors * kWidth) {
    VecF totals[kVectors];
    sum_rows(rows, totals, [&](std::int64_t row, VecF(&part)[kVectors]) {
      const std::int64_t at = row * d + i;
      for (int j = 0; j < kVectors; ++j)
        part[j] += load(dy + at + j * kWidth) * (load(x + at + j * kWidth) * rstd[row]);
    });
    for (int j = 0; j < kVectors; ++j) store(dgamma + i + j * kWidth, totals[j]);
  }
  for (; i < cols; i += kWidth) {
    const std::int64_t c = cols - i < kWidth ? cols - i : kWidth;
    VecF totals[1];
    sum_rows(rows, totals, [&](std::int64_t row, VecF(&part)[1]) {
      part[0] += load_some(dy + row * d + i, c) * (load_some(x + row * d + i, c) * rstd[row]);
    });
    store_some(dgamma + i, totals[0], c);
  }
}

}  // namespace dtrun::runtime::ops::DTRUN_LEVEL
