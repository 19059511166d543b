// Cross-entropy of logits of which each rank has some classes (Megatron's vocab-parallel cross entropy): the steps
// between which ranks exchange one or two numbers a row, never the logits. Numerically as cross_entropy.hpp.
#pragma once

#include <cstdint>

#include "worker_runtime/ops/cross_entropy.hpp"
#include "worker_runtime/ops/embedding.hpp"
#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime::ops {

// tops[N] = the largest of each row of logits[N, classes here]; -infinity when there are no classes here. Then: the
// largest over ranks.
void cross_entropy_tops(const Tensor& logits, const Tensor& tops);

// sums[2, N]: of exp(logit - top) over the classes here, and the logit of the target, 0 when another rank has it. Then:
// the sum over ranks. With `keep` the exponentials take the place of the logits. Throws UsageError for a target that is
// neither kIgnoreIndex nor in [0, part.whole).
void cross_entropy_sums(const Tensor& logits, const Tensor& targets, VocabularyPart part, const Tensor& tops,
                        const Tensor& sums, bool keep);

// loss[1] = the mean.
void cross_entropy_loss(const Tensor& targets, VocabularyPart part, const Tensor& tops, const Tensor& sums,
                        const Tensor& loss, MeanOver over = MeanOver::counted_rows);

// exponentials[N, classes here] become the gradient of the mean loss.
void cross_entropy_gradient(const Tensor& exponentials, const Tensor& targets, VocabularyPart part, const Tensor& sums,
                            MeanOver over = MeanOver::counted_rows);

}  // namespace dtrun::runtime::ops
