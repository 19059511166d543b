#include "worker_runtime/ops/cross_entropy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/ops/checks.hpp"
#include "worker_runtime/ops/cpu/kernel_table.hpp"
#include "worker_runtime/ops/fault_text.hpp"
#include "worker_runtime/ops/gpu/gpu.hpp"
#include "worker_runtime/ops/threads.hpp"

namespace dtrun::runtime::ops {
namespace {

constexpr std::int64_t kRows = 16;  // of one chunk

std::int64_t count_targets(std::span<const std::int32_t> targets, std::int64_t classes, std::int32_t ignore_index) {
  std::int64_t rows = 0;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] == ignore_index) continue;
    if (targets[i] < 0 || targets[i] >= classes) {
      throw UsageError("ops", fmt::format("cross_entropy: target {} of row {}, expected 0 to {} or {}", targets[i], i,
                                          classes - 1, ignore_index));
    }
    ++rows;
  }
  return rows;
}

CrossEntropySum run(const Tensor& logits, const Tensor& targets, const float* scale, std::int32_t ignore_index,
                    MeanOver over = MeanOver::counted_rows) {
  const auto [rows, classes] = rows_of("cross_entropy", "logits", logits);
  expect_numel("cross_entropy", "targets", targets, rows, DType::i32);
  if (are_abstract("cross_entropy", logits, targets)) return {.loss_sum = 0, .rows = rows};
  CrossEntropySum result;
  result.rows = count_targets(targets.span<std::int32_t>(), classes, ignore_index);
  if (over == MeanOver::all_rows) result.rows = rows;
  const float factor =
      scale == nullptr ? 0.0F : static_cast<float>(static_cast<double>(*scale) / static_cast<double>(result.rows));
  std::vector<double> losses(static_cast<std::size_t>(rows));
  parallel_chunks((rows + kRows - 1) / kRows, [&, rows = rows, classes = classes](std::int64_t chunk) {
    for (std::int64_t row = chunk * kRows; row < std::min(rows, (chunk + 1) * kRows); ++row) {
      float* const values = logits.data<float>() + row * classes;
      const std::int32_t target = targets.data<std::int32_t>()[row];
      if (target != ignore_index) {
        losses[static_cast<std::size_t>(row)] =
            kernels().cross_entropy_row(values, classes, target, scale != nullptr ? &factor : nullptr);
      } else if (scale != nullptr) {
        std::fill_n(values, classes, 0.0F);
      }
    }
  });
  result.loss_sum = kernels().sum(losses.data(), rows);
  return result;
}

void mean(const Tensor& logits, const Tensor& targets, const Tensor& loss, float scale, bool gradient, MeanOver over) {
  const auto rows = rows_of("cross_entropy", "logits", logits).rows;
  expect_numel("cross_entropy", "targets", targets, rows, DType::i32);
  expect_numel("cross_entropy", "loss", loss, 1);
  if (ran_elsewhere(
          "cross_entropy", [&] { gpu::cross_entropy(logits, targets, loss, scale, gradient, over); }, logits, targets,
          loss))
    return;
  *loss.data<float>() =
      static_cast<float>(run(logits, targets, gradient ? &scale : nullptr, kIgnoreIndex, over).mean());
}

}  // namespace

std::string target_fault_text(const std::string& op, std::int64_t row, std::int32_t target, std::int64_t limit) {
  return fmt::format("{}: target {} of row {}, expected 0 to {} or {}", op, target, row, limit - 1, kIgnoreIndex);
}

void cross_entropy_mean(const Tensor& logits, const Tensor& targets, const Tensor& loss, MeanOver over) {
  mean(logits, targets, loss, 0.0F, false, over);
}

void cross_entropy_mean_and_gradient(const Tensor& logits, const Tensor& targets, const Tensor& loss, float scale,
                                     MeanOver over) {
  mean(logits, targets, loss, scale, true, over);
}

CrossEntropySum cross_entropy_forward(const Tensor& logits, const Tensor& targets, std::int32_t ignore_index) {
  return run(logits, targets, nullptr, ignore_index);
}

CrossEntropySum cross_entropy_forward_backward(const Tensor& logits, const Tensor& targets, float scale,
                                               std::int32_t ignore_index) {
  return run(logits, targets, &scale, ignore_index);
}

}  // namespace dtrun::runtime::ops
