// Cross-entropy of logits against class indices, as torch.nn.functional.cross_entropy without class weights or label
// smoothing.
#pragma once

#include <cstdint>

#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime::ops {

struct CrossEntropySum {
  double loss_sum = 0;    // natural logarithm, over the counted rows, in row order
  std::int64_t rows = 0;  // rows whose target is not ignore_index
  // NaN when no row counts, as torch.
  double mean() const noexcept { return loss_sum / static_cast<double>(rows); }
};

inline constexpr std::int32_t kIgnoreIndex = -100;

// What a sum of losses is divided by: the rows that count (torch's mean: NaN when none does), or all rows, where
// another factor makes up for those that do not count and rows may well count nowhere.
enum class MeanOver { counted_rows, all_rows };

// logits[N, V], targets[N] i32. Throws UsageError for a target that is neither ignore_index nor in [0, V). Abstract
// tensors have N rows and no loss.
CrossEntropySum cross_entropy_forward(const Tensor& logits, const Tensor& targets,
                                      std::int32_t ignore_index = kIgnoreIndex);

// The same, and in the same pass logits become `scale` * d(mean loss)/d(logits): (softmax - onehot) * scale / rows;
// ignored rows become 0. `scale` is 1 / micro-batches under accumulation.
CrossEntropySum cross_entropy_forward_backward(const Tensor& logits, const Tensor& targets, float scale = 1.0F,
                                               std::int32_t ignore_index = kIgnoreIndex);

// The same of any place: the mean goes into loss[1], f32, and nothing comes to the host. A wrong
// target on a device is told by it when it is next waited for.
void cross_entropy_mean(const Tensor& logits, const Tensor& targets, const Tensor& loss,
                        MeanOver over = MeanOver::counted_rows);
void cross_entropy_mean_and_gradient(const Tensor& logits, const Tensor& targets, const Tensor& loss,
                                     float scale = 1.0F, MeanOver over = MeanOver::counted_rows);

}  // namespace dtrun::runtime::ops
