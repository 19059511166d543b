#include "worker_runtime/ops/cross_entropy.hpp"

#include "worker_runtime/ops/fault_text.hpp"
#include "worker_runtime/ops/gpu/gpu.hpp"
#include "worker_runtime/ops/gpu/on_device.hpp"

namespace dtrun::runtime::ops::gpu {
namespace {

// How many rows count, and the loss of each, in memory of the current stream.
struct Scratch {
  Scratch(Device& device, std::int64_t rows)
      : bytes(static_cast<std::size_t>(rows + 1) * sizeof(double)), data(device.scratch(bytes)) {}
  std::int64_t* count() const { return reinterpret_cast<std::int64_t*>(data); }
  double* losses() const { return reinterpret_cast<double*>(data) + 1; }
  cuda::Access count_access(bool writes) const { return {data, sizeof(std::int64_t), writes}; }
  cuda::Access losses_access(bool writes) const { return {data + sizeof(double), bytes - sizeof(double), writes}; }

  std::size_t bytes;
  std::byte* data;
};

void count_targets(Device& device, const Tensor& targets, std::int64_t classes, MeanOver over, const Scratch& scratch) {
  launch(device,
         kernels::CountTargets{targets.device_data<std::int32_t>(), targets.numel(), classes, kIgnoreIndex,
                               over == MeanOver::all_rows, scratch.count(),
                               device.fault_word("cross_entropy", classes, target_fault_text)},
         {reads(targets), scratch.count_access(true)});
}

void sum_losses(Device& device, std::int64_t rows, const Scratch& scratch, const Tensor& loss) {
  launch(device, kernels::SumLosses{scratch.losses(), rows, scratch.count(), nullptr, loss.device_data<float>()},
         {scratch.count_access(false), scratch.losses_access(false), writes(loss)});
}

std::int64_t classes_of(const Tensor& logits) { return logits.dim(-1); }

}  // namespace

void cross_entropy(const Tensor& logits, const Tensor& targets, const Tensor& loss, float scale, bool gradient,
                   MeanOver over) {
  auto& device = device_of(logits);
  const std::int64_t rows = targets.numel();
  const Scratch scratch(device, rows);
  count_targets(device, targets, classes_of(logits), over, scratch);
  by_type(logits, [&](auto type) {
    using T = decltype(type);
    launch(device,
           kernels::CrossEntropyRows<T>{at<T>(logits), targets.device_data<std::int32_t>(), rows, classes_of(logits),
                                        kIgnoreIndex, scratch.count(), scale, gradient, scratch.losses()},
           {gradient ? writes(logits) : reads(logits), reads(targets), scratch.count_access(false),
            scratch.losses_access(true)});
  });
  sum_losses(device, rows, scratch, loss);
}

void cross_entropy_tops(const Tensor& logits, const Tensor& tops) {
  by_type(logits, [&](auto type) {
    using T = decltype(type);
    launch(device_of(tops),
           kernels::RowMax<T>{at<T>(logits), tops.numel(), classes_of(logits), tops.device_data<float>()},
           {reads(logits), writes(tops)});
  });
}

void cross_entropy_sums(const Tensor& logits, const Tensor& targets, VocabularyPart part, const Tensor& tops,
                        const Tensor& sums, bool keep) {
  auto& device = device_of(logits);
  const std::int64_t rows = targets.numel();
  count_targets(device, targets, part.whole, MeanOver::counted_rows, Scratch(device, 0));  // to tell wrong ones
  float* const to = sums.device_data<float>();
  by_type(logits, [&](auto type) {
    using T = decltype(type);
    launch(device,
           kernels::ExpSums<T>{at<T>(logits), targets.device_data<std::int32_t>(), part.first, rows, classes_of(logits),
                               tops.device_data<float>(), keep, to, to + rows, nullptr},
           {keep ? writes(logits) : reads(logits), reads(targets), reads(tops), writes(sums)});
  });
}

void cross_entropy_loss(const Tensor& targets, VocabularyPart part, const Tensor& tops, const Tensor& sums,
                        const Tensor& loss, MeanOver over) {
  auto& device = device_of(targets);
  const std::int64_t rows = targets.numel();
  const Scratch scratch(device, rows);
  count_targets(device, targets, part.whole, over, scratch);
  launch(device,
         kernels::PartLosses{targets.device_data<std::int32_t>(), kIgnoreIndex, tops.device_data<float>(),
                             sums.device_data<float>(), rows, scratch.losses()},
         {reads(targets), reads(tops), reads(sums), scratch.losses_access(true)});
  sum_losses(device, rows, scratch, loss);
}

void cross_entropy_gradient(const Tensor& exponentials, const Tensor& targets, VocabularyPart part, const Tensor& sums,
                            MeanOver over) {
  auto& device = device_of(targets);
  const Scratch scratch(device, 0);
  count_targets(device, targets, part.whole, over, scratch);
  by_type(exponentials, [&](auto type) {
    using T = decltype(type);
    launch(
        device,
        kernels::PartGradient<T>{at<T>(exponentials), targets.device_data<std::int32_t>(), kIgnoreIndex, part.first,
                                 targets.numel(), classes_of(exponentials), sums.device_data<float>(), scratch.count()},
        {writes(exponentials), reads(targets), reads(sums), scratch.count_access(false)});
  });
}

}  // namespace dtrun::runtime::ops::gpu
