// Sums of a GlooGroup that are too large for one message: chunk by chunk, in rank order.
#include <algorithm>

#include "worker_runtime/comm/gloo/gloo_group.hpp"
#include "worker_runtime/comm/gloo/link.hpp"
#include "worker_runtime/comm/shm/reduce.hpp"

namespace dtrun::runtime::gloo {

namespace {

constexpr std::size_t kChunkBytes = std::size_t{512} << 10;
constexpr std::size_t kLeastChunkBytes = std::size_t{64} << 10;
constexpr std::size_t kStagingBytes = std::size_t{16} << 20;  // of chunks of all ranks, two of each

// Elements [first, first + count) of the whole that one rank sums.
struct Range {
  std::size_t first = 0, count = 0;
};

std::size_t chunks_of(const Range& range, std::size_t chunk) { return (range.count + chunk - 1) / chunk; }

}  // namespace

void GlooGroup::sum_parts(const Collective& call, const Plan& cut) {
  const auto self = static_cast<std::size_t>(rank());
  const auto n = static_cast<std::size_t>(size());
  const bool all = call.op == CommOp::all_reduce;
  // Where in the input lies what rank `owner` sums.
  const auto range_of = [&](std::size_t owner) -> Range {
    if (call.op == CommOp::reduce) return static_cast<int>(owner) == call.root ? Range{0, cut.part} : Range{};
    if (call.op == CommOp::reduce_scatter) return {owner * cut.part, cut.part};
    const std::size_t share = (cut.part + n - 1) / n;
    const std::size_t first = std::min(cut.part, share * owner);
    return {first, std::min(cut.part - first, share)};
  };
  const std::size_t chunk =
      std::clamp(kStagingBytes / 2 / std::max<std::size_t>(n - 1, 1), kLeastChunkBytes, kChunkBytes) / 64 * 64 /
      cut.item;
  const Range own = range_of(self);
  std::byte* const input = call.input->raw();
  // all_reduce and reduce work in place; reduce_scatter has an output, perhaps part of the input.
  std::byte* const result = call.op == CommOp::reduce_scatter ? call.output->raw() : input + own.first * cut.item;
  const std::size_t input_bytes = call.input->bytes();

  const std::size_t chunk_bytes = chunk * cut.item;
  if (own.count != 0 && !staging_.defined())
    staging_ = allocate_staging(static_cast<std::int64_t>(2 * (n - 1) * chunk_bytes));
  const auto staged = [&](std::size_t peer, std::size_t k) {
    const std::size_t index = (peer < self ? peer : peer - 1) * 2 + k % 2;
    return staging_.raw() + index * chunk_bytes;
  };
  const auto piece = [&](const Range& range, std::size_t k) {
    return Range{range.first + k * chunk, std::min(chunk, range.count - k * chunk)};
  };

  // parts: chunks of others that this rank sums. sums: chunks that others summed, straight into the tensor.
  std::vector<std::unique_ptr<Buffer>> parts(n), sums(n), sent_parts(n), sent_sums(n);
  const std::size_t own_chunks = chunks_of(own, chunk);
  const auto ask_for_part = [&](std::size_t peer, std::size_t k) {
    if (k < own_chunks)
      post_receive(*parts[peer], static_cast<int>(peer), kParts, (k % 2) * chunk_bytes, piece(own, k).count * cut.item);
  };
  for (std::size_t step = 1; step < n; ++step) {
    const std::size_t peer = (self + step) % n;
    const int other = static_cast<int>(peer);
    const Range theirs = range_of(peer);
    if (own.count != 0) parts[peer] = mesh_->buffer(staged(peer, 0), 2 * chunk_bytes);
    ask_for_part(peer, 0);
    ask_for_part(peer, 1);
    sent_parts[peer] = mesh_->buffer(input, input_bytes);
    if (all) {
      sums[peer] = mesh_->buffer(input, input_bytes);
      sent_sums[peer] = mesh_->buffer(input, input_bytes);
    }
    for (std::size_t k = 0; k < chunks_of(theirs, chunk); ++k) {
      const Range at = piece(theirs, k);
      if (all) post_receive(*sums[peer], other, kSums, at.first * cut.item, at.count * cut.item);
      post_send(*sent_parts[peer], other, kParts, at.first * cut.item, at.count * cut.item);
    }
  }

  std::vector<const std::byte*> sources(n);
  for (std::size_t k = 0; k < own_chunks; ++k) {
    const Range at = piece(own, k);
    for (std::size_t peer = 0; peer < n; ++peer) {
      if (peer != self) await(*parts[peer], Wait::receive, static_cast<int>(peer));
      sources[peer] = peer == self ? input + at.first * cut.item : staged(peer, k);
    }
    std::byte* to = result + k * chunk_bytes;
    shm::kernels().reduce({.dtype = cut.dtype,
                           .op = call.reduce,
                           .ranks = size(),
                           .sources = sources.data(),
                           .outputs = &to,
                           .output_count = 1,
                           .count = at.count,
                           .stream = false});
    for (std::size_t step = 1; step < n; ++step) {
      const std::size_t peer = (self + step) % n;
      ask_for_part(peer, k + 2);
      if (all) post_send(*sent_sums[peer], static_cast<int>(peer), kSums, at.first * cut.item, at.count * cut.item);
    }
  }
  for (std::size_t peer = 0; peer < n; ++peer) {
    if (peer == self) continue;
    const int other = static_cast<int>(peer);
    for (std::size_t k = 0; k < chunks_of(range_of(peer), chunk); ++k) {
      if (all) await(*sums[peer], Wait::receive, other);
      await(*sent_parts[peer], Wait::send, other);
    }
    for (std::size_t k = 0; all && k < own_chunks; ++k) await(*sent_sums[peer], Wait::send, other);
  }
}

}  // namespace dtrun::runtime::gloo
