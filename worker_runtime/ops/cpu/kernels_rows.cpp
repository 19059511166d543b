#include "worker_runtime/ops/cpu/functors.hpp"
#include "worker_runtime/ops/cpu/kernels.hpp"
#include "worker_runtime/ops/cpu/rows.hpp"

namespace dtrun::runtime::ops::DTRUN_LEVEL {
namespace {

void layernorm_row(const float* x, const float* gamma, const float* beta, float eps, std::int64_t d, float* y,
                   float* mean, float* rstd) {
  VecF total{};
  for_vectors(
      d, [&](std::int64_t i) { total += load(x + i); },
      [&](std::int64_t i, std::int64_t c) { total += load_some(x + i, c); });
  const float mu = sum(total) / static_cast<float>(d);
  VecF squares{};
  const auto add_square = [&](VecF value) { squares += (value - mu) * (value - mu); };
  for_vectors(
      d, [&](std::int64_t i) { add_square(load(x + i)); },
      [&](std::int64_t i, std::int64_t c) { add_square(load_some(x + i, c, mu)); });
  const float r = 1.0F / __builtin_sqrtf(sum(squares) / static_cast<float>(d) + eps);
  for_vectors(
      d, [&](std::int64_t i) { store(y + i, (load(x + i) - mu) * r * load(gamma + i) + load(beta + i)); },
      [&](std::int64_t i, std::int64_t c) {
        store_some(y + i, (load_some(x + i, c) - mu) * r * load_some(gamma + i, c) + load_some(beta + i, c), c);
      });
  *mean = mu;
  *rstd = r;
}

// dx = rstd (g - mean(g) - xhat mean(g xhat)), g = dy gamma.
void layernorm_backward_row(const float* dy, const float* x, const float* gamma, float mu, float r, std::int64_t d,
                            float* dx, bool add_to) {
  VecF sum_g{};
  VecF sum_gx{};
  const auto collect = [&](VecF g, VecF centred) {
    sum_g += g;
    sum_gx += g * (centred * r);
  };
  for_vectors(
      d, [&](std::int64_t i) { collect(load(dy + i) * load(gamma + i), load(x + i) - mu); },
      [&](std::int64_t i, std::int64_t c) {
        collect(load_some(dy + i, c) * load_some(gamma + i, c), load_some(x + i, c, mu) - mu);
      });
  const float mean_g = sum(sum_g) / static_cast<float>(d);
  const float mean_gx = sum(sum_gx) / static_cast<float>(d);
  const auto value = [&](VecF g, VecF centred) { return rounded((g - mean_g - centred * r * mean_gx) * r); };
  for_vectors(
      d,
      [&](std::int64_t i) {
        const VecF result = value(load(dy + i) * load(gamma + i), load(x + i) - mu);
        store(dx + i, add_to ? load(dx + i) + result : result);
      },
      [&](std::int64_t i, std::int64_t c) {
        const VecF result = value(load_some(dy + i, c) * load_some(gamma + i, c), load_some(x + i, c) - mu);
        store_some(dx + i, add_to ? load_some(dx + i, c) + result : result, c);
      });
}

}  // namespace

void layernorm_forward(const float* x, const float* gamma, const float* beta, float eps, std::int64_t rows,
                       std::int64_t d, float* y, float* mean, float* rstd) {
  for (std::int64_t row = 0; row < rows; ++row)
    layernorm_row(x + row * d, gamma, beta, eps, d, y + row * d, mean + row, rstd + row);
}

void layernorm_backward_input(const float* dy, const float* x, const float* gamma, const float* mean, const float* rstd,
                              std::int64_t rows, std::int64_t d, float* dx, bool add_to) {
  for (std::int64_t row = 0; row < rows; ++row) {
    layernorm_backward_row(dy + row * d, x + row * d, gamma, mean[row], rstd[row], d, dx + row * d, add_to);
  }
}

void layernorm_backward_weight(const float* dy, const float* x, const float* mean, const float* rstd, std::int64_t rows,
                               std::int64_t d, std::int64_t cols, float* dgamma, float* dbeta) {
  constexpr int kVectors = 4;  // side by side, so that whole cache lines are used at every level
  std::int64_t i = 0;
  for (; i + kVectors * kWidth <= cols; i += kVectors * kWidth) {
    VecF totals[2 * kVectors];
    sum_rows(rows, totals, [&](std::int64_t row, VecF(&part)[2 * kVectors]) {
      const std::int64_t at = row * d + i;
      for (int j = 0; j < kVectors; ++j) {
        const VecF g = load(dy + at + j * kWidth);
        part[j] += g * ((load(x + at + j * kWidth) - mean[row]) * rstd[row]);
        part[kVectors + j] += g;
      }
    });
    for (int j = 0; j < kVectors; ++j) {
      store(dgamma + i + j * kWidth, totals[j]);
      store(dbeta + i + j * kWidth, totals[kVectors + j]);
    }
  }
  for (; i < cols; i += kWidth) {
    const std::int64_t c = cols - i < kWidth ? cols - i : kWidth;
    VecF totals[2];
    sum_rows(rows, totals, [&](std::int64_t row, VecF(&part)[2]) {
      const VecF g = load_some(dy + row * d + i, c);
      part[0] += g * ((load_some(x + row * d + i, c) - mean[row]) * rstd[row]);
      part[1] += g;
    });
    store_some(dgamma + i, totals[0], c);
    store_some(dbeta + i, totals[1], c);
  }
}

double sum_in_order(const double* x, std::int64_t n) {
  double total = 0;
  for (std::int64_t i = 0; i < n; ++i) total += x[i];
  return total;
}

void column_sums(const float* x, std::int64_t rows, std::int64_t d, std::int64_t cols, float* sums) {
  std::int64_t i = 0;
  for (; i + 4 * kWidth <= cols; i += 4 * kWidth) {
    VecF totals[4];
    sum_rows(rows, totals, [&](std::int64_t row, VecF(&part)[4]) {
      for (int j = 0; j < 4; ++j) part[j] += load(x + row * d + i + j * kWidth);
    });
    for (int j = 0; j < 4; ++j) store(sums + i + j * kWidth, totals[j]);
  }
  for (; i < cols; i += kWidth) {
    const std::int64_t c = cols - i < kWidth ? cols - i : kWidth;
    VecF totals[1];
    sum_rows(rows, totals, [&](std::int64_t row, VecF(&part)[1]) { part[0] += load_some(x + row * d + i, c); });
    store_some(sums + i, totals[0], c);
  }
}

float row_max(const float* x, std::int64_t n) {
  const float minus_infinity = -__builtin_inff();
  VecF peak = broadcast(minus_infinity);
  for_vectors(
      n, [&](std::int64_t i) { peak = max(peak, load(x + i)); },
      [&](std::int64_t i, std::int64_t c) { peak = max(peak, load_some(x + i, c, minus_infinity)); });
  return largest(peak);
}

double exp_sum(float* x, std::int64_t n, float top, bool keep) {
  double result = 0;
  constexpr std::int64_t kBlock = 1024;  // partial sums in f32, their sum in double
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const std::int64_t length = n - begin < kBlock ? n - begin : kBlock;
    float* block = x + begin;
    VecF total{};
    for_vectors(
        length,
        [&](std::int64_t i) {
          const VecF e = exp(load(block + i) - top);
          total += e;
          if (keep) store(block + i, e);
        },
        [&](std::int64_t i, std::int64_t c) {
          const VecF e = exp(load_some(block + i, c, -__builtin_inff()) - top);
          total += e;
          if (keep) store_some(block + i, e, c);
        });
    result += static_cast<double>(sum(total));
  }
  return result;
}

double cross_entropy_row(float* logits, std::int64_t classes, std::int64_t target, const float* factor) {
  const float top = row_max(logits, classes);
  const float target_logit = logits[target];
  const double denominator = exp_sum(logits, classes, top, factor != nullptr);
  if (factor != nullptr) {
    scale(logits, static_cast<float>(static_cast<double>(*factor) / denominator), classes);
    logits[target] -= *factor;
  }
  return static_cast<double>(top) + __builtin_log(denominator) - static_cast<double>(target_logit);
}

}  // namespace dtrun::runtime::ops::DTRUN_LEVEL
