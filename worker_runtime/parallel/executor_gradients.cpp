// StepExecutor's gradients once they are there: their norm over all ranks, CLIP, and sums of what tensor parallelism
// leaves whole.
#include <cmath>
#include <cstring>

#include "worker_runtime/ops/elementwise.hpp"
#include "worker_runtime/optim/clip.hpp"
#include "worker_runtime/parallel/executor.hpp"

namespace dtrun::runtime {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

}  // namespace

SquareSum StepExecutor::own_squares() const {
  std::vector<Tensor> gradients;
  if (shards_ || tensor_parallel_) {
    const bool first_of_tp = mesh_.coordinate("tp") == 0;  // of ranks that have the same gradient one counts
    for (const auto& piece : optimizer_pieces()) {
      if (first_of_tp || model_.find(piece.name)->cut().is_cut()) gradients.push_back(piece.grad);
    }
  } else {
    for (int buffer = 0; buffer < program_.metrics_buffer(); ++buffer) gradients.push_back(buffers_[at(buffer)]);
  }
  // A loss that is no number must not be trained on either, and this costs no further wait for a device.
  const Tensor nothing = losses_.narrow(1, 1);
  nothing.copy_from(metric(kMetricLoss));
  ops::scale(nothing, 0.0F);
  gradients.push_back(nothing);
  SquareSum squares;
  squares.add(gradients);
  return squares;
}

std::vector<Tensor> StepExecutor::gradients_not_cut() const {
  if (shards_) return shards_->gradients_not_cut();
  std::vector<Tensor> result;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i]->cut().is_cut() && program_.owns(static_cast<int>(i))) result.push_back(bucket_grads_[i]);
  }
  return result;
}

// One sum for all of them: most are small.
void StepExecutor::reduce_partial() {
  const auto gradients = gradients_not_cut();
  std::int64_t numel = 0;
  for (const auto& gradient : gradients) numel += gradient.numel();
  if (numel == 0) return;  // a stage may have cut parameters only
  const Tensor flat = tensor_parallel_->allocate(Shape{numel}, MemoryTag::work);
  const auto place = [&, offset = std::int64_t{0}](const Tensor& gradient) mutable {
    const Tensor result = flat.narrow(offset, gradient.numel()).view(gradient.shape());
    offset += gradient.numel();
    return result;
  };
  for (auto next = place; const auto& gradient : gradients) next(gradient).copy_from(gradient);
  tensor_parallel_->sum(flat);
  for (auto next = place; const auto& gradient : gradients) gradient.copy_from(next(gradient));
}

// Exact sums: the norm has the same bits however the gradients are spread over ranks.
SquareSum StepExecutor::squares_of_all_ranks() {
  const SquareSum own = own_squares();
  if (norm_ == nullptr) return own;
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(SquareSum));
  const auto mine = Tensor::empty(Shape{kSize}, DType::u8, work_arena_);
  const auto all = Tensor::empty(Shape{kSize * norm_->size()}, DType::u8, work_arena_);
  if (!mine.is_abstract()) {
    const auto here = Tensor::on_host(mine.shape(), DType::u8);
    std::memcpy(here.raw(), &own, sizeof own);
    mine.copy_from(here);
  }
  norm_->all_gather(all, mine);
  if (all.is_abstract()) return own;
  const auto gathered = all.to_host();
  SquareSum squares;
  for (int rank = 0; rank < norm_->size(); ++rank) {
    SquareSum other;
    std::memcpy(&other, gathered.raw() + at(rank) * sizeof other, sizeof other);
    squares.merge(other);
  }
  return squares;
}

// What the sum over all micro-batches of all ranks is divided by to be a mean.
double StepExecutor::sums_per_mean(const StepInput& input) const {
  return static_cast<double>(program_.config.axes.data_ranks()) * program_.config.micro_batches * input.real_share;
}

void StepExecutor::clip(const StepInput& input, StepResult& result) {
  const SquareSum squares = squares_of_all_ranks();
  const double scale = 1.0 / sums_per_mean(input);
  result.grad_norm = squares.norm() * scale;
  result.skipped = !std::isfinite(result.grad_norm);
  grad_scale_ = static_cast<float>(scale * static_cast<double>(clip_coefficient(result.grad_norm, input.max_norm)));
}

}  // namespace dtrun::runtime
