#include "worker_runtime/nn/vocab_cross_entropy.hpp"

#include <utility>

#include "worker_runtime/nn/tensor_parallel.hpp"
#include "worker_runtime/ops/cross_entropy_part.hpp"
#include "worker_runtime/ops/elementwise.hpp"

namespace dtrun::runtime {
namespace {

// The logits become their gradient, as in CrossEntropyNode.
class VocabCrossEntropyNode final : public Node {
 public:
  VocabCrossEntropyNode(TensorParallel& ranks, Tensor targets, ops::VocabularyPart part, bool training)
      : ranks_(ranks), targets_(std::move(targets)), part_(part), training_(training) {}
  std::string_view name() const override { return "vocab_cross_entropy"; }
  bool result_stays_f32() const override { return true; }
  Tensor forward(RunContext& ctx, std::span<const Tensor> inputs) override {
    const Tensor& logits = inputs[0];
    const std::int64_t rows = targets_.numel();
    const Tensor tops = ranks_.allocate({rows}, MemoryTag::work);
    const Tensor sums = ranks_.allocate({2, rows}, MemoryTag::work);
    ops::cross_entropy_tops(logits, tops);
    ranks_.max(tops);
    ops::cross_entropy_sums(logits, targets_, part_, tops, sums, training_);
    if (training_) ctx.round(logits);  // exponentials
    ranks_.sum(sums);
    const auto over = ctx.loss_over_all_rows ? ops::MeanOver::all_rows : ops::MeanOver::counted_rows;
    const Tensor loss = Tensor::empty({1}, DType::f32, ctx.activation);
    ops::cross_entropy_loss(targets_, part_, tops, sums, loss, over);
    if (training_) {
      ops::cross_entropy_gradient(logits, targets_, part_, sums, over);
      ctx.round(logits);
      grad_ = logits;
    }
    return loss;
  }
  void backward_input(RunContext& ctx, const Tensor& grad_out, std::span<InputGrad> grads) override {
    if (!grads[0].needed) return;
    ops::scale(grad_, grad_out);
    grads[0].deliver(ctx, std::exchange(grad_, Tensor()));
  }

 private:
  TensorParallel& ranks_;
  Tensor targets_;
  ops::VocabularyPart part_;
  bool training_;
  Tensor grad_;
};

}  // namespace

Value vocab_cross_entropy(Tape& tape, const Value& logits, const Tensor& targets) {
  auto& ranks = tensor_parallel(tape);
  const std::int64_t vocabulary = logits.lay().extent;
  const ops::VocabularyPart part{chunk(vocabulary, ranks.size(), ranks.rank()).start, vocabulary};
  return tape.apply_as<VocabCrossEntropyNode>(Lay(), {logits}, ranks, targets, part, tape.training());
}

}  // namespace dtrun::runtime
