#include "worker_runtime/ops/embedding.hpp"

#include "worker_runtime/ops/fault_text.hpp"
#include "worker_runtime/ops/gpu/gpu.hpp"
#include "worker_runtime/ops/gpu/on_device.hpp"

namespace dtrun::runtime::ops::gpu {

void embedding_forward(const Tensor& ids, const Tensor& tokens, const Tensor& positions, const Tensor& out,
                       VocabularyPart part) {
  auto& device = device_of(ids);
  const std::int64_t d = tokens.dim(-1);
  const std::int64_t rows = d == 0 ? 0 : tokens.numel() / d;
  const std::int64_t vocabulary = part.whole == 0 ? rows : part.whole;
  by_type(tokens, [&](auto type) {
    using T = decltype(type);
    launch(device,
           kernels::EmbeddingForward<T>{ids.device_data<std::int32_t>(), ids.numel(), ids.dim(-1), at<T>(tokens),
                                        part.first, rows, vocabulary, at<T>(positions), d, at<T>(out),
                                        device.fault_word("embedding_forward", vocabulary, token_fault_text)},
           {reads(ids), reads(tokens), reads(positions), writes(out)});
  });
}

void embedding_backward_tokens(const Tensor& ids, const Tensor& dout, const Tensor& dtokens, Into into,
                               VocabularyPart part) {
  auto& device = device_of(ids);
  const std::int64_t d = dtokens.dim(-1);
  const std::int64_t rows = d == 0 ? 0 : dtokens.numel() / d;
  const std::int64_t vocabulary = part.whole == 0 ? rows : part.whole;
  if (into == Into::overwrite) dtokens.zero();
  by_type(dout, [&](auto type) {
    using T = decltype(type);
    launch(device,
           kernels::EmbeddingBackwardTokens<T>{
               ids.device_data<std::int32_t>(), ids.numel(), at<T>(dout), d, part.first, rows, vocabulary,
               at<float>(dtokens), into == Into::add,
               device.fault_word("embedding_backward_tokens", vocabulary, token_fault_text)},
           {reads(ids), reads(dout), writes(dtokens)});
  });
}

void embedding_backward_positions(const Tensor& dout, const Tensor& dpositions, std::int64_t first) {
  by_type(dout, [&](auto type) {
    using T = decltype(type);
    launch(device_of(dout),
           kernels::EmbeddingBackwardPositions<T>{at<T>(dout), dout.dim(0), dout.dim(1), dout.dim(2), first,
                                                  at<float>(dpositions), dpositions.numel()},
           {reads(dout), writes(dpositions)});
  });
}

void add_positions(const Tensor& x, const Tensor& positions, std::int64_t first, const Tensor& y) {
  const std::int64_t time = x.dim(1);
  by_type(x, [&](auto type) {
    using T = decltype(type);
    launch(device_of(x),
           kernels::AddPeriodic<T>{at<T>(x), at<T>(positions) + first * x.dim(2), time * x.dim(2), at<T>(y), x.numel()},
           {reads(x), reads(positions), writes(y)});
  });
}

}  // namespace dtrun::runtime::ops::gpu
