#include "worker_runtime/ops/cross_entropy_part.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/ops/checks.hpp"
#include "worker_runtime/ops/cpu/kernel_table.hpp"
#include "worker_runtime/ops/fault_text.hpp"
#include "worker_runtime/ops/gpu/gpu.hpp"
#include "worker_runtime/ops/threads.hpp"

namespace dtrun::runtime::ops {
namespace {

template <class Function>
void for_rows(std::int64_t rows, Function function) {
  constexpr std::int64_t kRows = 16;  // of one chunk
  parallel_chunks((rows + kRows - 1) / kRows, [&](std::int64_t chunk) {
    for (std::int64_t row = chunk * kRows; row < std::min(rows, (chunk + 1) * kRows); ++row) function(row);
  });
}

void check_targets(std::span<const std::int32_t> targets, std::int64_t classes) {
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] == kIgnoreIndex || (targets[i] >= 0 && targets[i] < classes)) continue;
    throw UsageError("ops", target_fault_text("cross_entropy", static_cast<std::int64_t>(i), targets[i], classes));
  }
}

std::int64_t divisor(const Tensor& targets, MeanOver over) {
  if (over == MeanOver::all_rows) return targets.numel();
  return std::ranges::count_if(targets.span<std::int32_t>(),
                               [](std::int32_t target) { return target != kIgnoreIndex; });
}

}  // namespace

void cross_entropy_tops(const Tensor& logits, const Tensor& tops) {
  const auto [rows, classes] = rows_of("cross_entropy_tops", "logits", logits);
  expect_numel("cross_entropy_tops", "tops", tops, rows);
  if (ran_elsewhere(
          "cross_entropy_tops", [&] { gpu::cross_entropy_tops(logits, tops); }, logits, tops))
    return;
  for_rows(rows, [&, classes = classes](std::int64_t row) {
    tops.data<float>()[row] = kernels().row_max(logits.data<float>() + row * classes, classes);
  });
}

void cross_entropy_sums(const Tensor& logits, const Tensor& targets, VocabularyPart part, const Tensor& tops,
                        const Tensor& sums, bool keep) {
  constexpr std::string_view kOp = "cross_entropy_sums";
  const auto [rows, classes] = rows_of(kOp, "logits", logits);
  expect_numel(kOp, "targets", targets, rows, DType::i32);
  expect_numel(kOp, "tops", tops, rows);
  expect_numel(kOp, "sums", sums, 2 * rows);
  if (ran_elsewhere(
          kOp, [&] { gpu::cross_entropy_sums(logits, targets, part, tops, sums, keep); }, logits, targets, tops, sums))
    return;
  check_targets(targets.span<std::int32_t>(), part.whole);
  for_rows(rows, [&, rows = rows, classes = classes](std::int64_t row) {
    float* const values = logits.data<float>() + row * classes;
    const std::int64_t target = targets.data<std::int32_t>()[row] - part.first;
    sums.data<float>()[rows + row] = target >= 0 && target < classes ? values[target] : 0.0F;
    sums.data<float>()[row] = static_cast<float>(kernels().exp_sum(values, classes, tops.data<float>()[row], keep));
  });
}

void cross_entropy_loss(const Tensor& targets, VocabularyPart part, const Tensor& tops, const Tensor& sums,
                        const Tensor& loss, MeanOver over) {
  constexpr std::string_view kOp = "cross_entropy_loss";
  const std::int64_t rows = targets.numel();
  expect_numel(kOp, "tops", tops, rows);
  expect_numel(kOp, "sums", sums, 2 * rows);
  expect_numel(kOp, "loss", loss, 1);
  if (ran_elsewhere(
          kOp, [&] { gpu::cross_entropy_loss(targets, part, tops, sums, loss, over); }, targets, tops, sums, loss))
    return;
  std::vector<double> losses(static_cast<std::size_t>(rows));
  for (std::int64_t row = 0; row < rows; ++row) {
    if (targets.data<std::int32_t>()[row] == kIgnoreIndex) continue;
    losses[static_cast<std::size_t>(row)] = static_cast<double>(tops.data<float>()[row]) +
                                            std::log(static_cast<double>(sums.data<float>()[row])) -
                                            static_cast<double>(sums.data<float>()[rows + row]);
  }
  const CrossEntropySum result{.loss_sum = kernels().sum(losses.data(), rows), .rows = divisor(targets, over)};
  *loss.data<float>() = static_cast<float>(result.mean());
}

void cross_entropy_gradient(const Tensor& exponentials, const Tensor& targets, VocabularyPart part, const Tensor& sums,
                            MeanOver over) {
  constexpr std::string_view kOp = "cross_entropy_gradient";
  const auto [places, classes] = rows_of(kOp, "exponentials", exponentials);
  expect_numel(kOp, "targets", targets, places, DType::i32);
  expect_numel(kOp, "sums", sums, 2 * places);
  if (ran_elsewhere(
          kOp, [&] { gpu::cross_entropy_gradient(exponentials, targets, part, sums, over); }, exponentials, targets,
          sums))
    return;
  const double factor = 1.0 / static_cast<double>(divisor(targets, over));
  for_rows(places, [&, classes = classes](std::int64_t row) {
    float* const values = exponentials.data<float>() + row * classes;
    const std::int32_t target = targets.data<std::int32_t>()[row];
    if (target == kIgnoreIndex) {
      std::fill_n(values, classes, 0.0F);
      return;
    }
    kernels().scale(values, static_cast<float>(factor / static_cast<double>(sums.data<float>()[row])), classes);
    if (target >= part.first && target - part.first < classes)
      values[target - part.first] -= static_cast<float>(factor);
  });
}

}  // namespace dtrun::runtime::ops
