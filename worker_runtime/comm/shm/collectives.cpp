// How the collectives of a ShmGroup move data. See the picture in shm_group.hpp.
#include <algorithm>

#include "worker_runtime/comm/shm/shm_group.hpp"

namespace dtrun::runtime::shm {

namespace {

// Results beyond this size are written past the caches: they would push out more than they bring.
constexpr std::size_t kStreamBytes = std::size_t{8} << 20;
// Up to this size an all_reduce is faster when every rank reduces everything: one wait instead of two.
constexpr std::size_t kInlineReduceBytes = 16 * 1024;
// Of one tensor: the blocks of all ranks' tensors together stay well below a core's cache.
constexpr std::size_t kSweepBytes = std::size_t{32} << 10;

// Part `rank` of `count` elements, cut at cache lines so that no two ranks write one.
struct Slice {
  std::size_t first, count;
};
Slice slice_of(std::size_t count, std::size_t item, int rank, int ranks) {
  const std::size_t line = 64 / item;
  const std::size_t share =
      (count + static_cast<std::size_t>(ranks) * line - 1) / (static_cast<std::size_t>(ranks) * line) * line;
  const std::size_t first = std::min(count, share * static_cast<std::size_t>(rank));
  return {first, std::min(count - first, share)};
}

}  // namespace

ShmGroup::Plan ShmGroup::plan(const Collective& call) const {
  Plan result;
  if (call.op == CommOp::barrier) return result;
  const bool by_output = call.op == CommOp::reduce_scatter || call.op == CommOp::scatter;
  const Tensor& part = *part_of(call);
  result.dtype = part.dtype();
  result.item = size_of(part.dtype());
  result.part = static_cast<std::size_t>(part.numel());
  result.count = result.part;
  result.only_root = call.op == CommOp::broadcast || call.op == CommOp::scatter;
  if (by_output) result.pieces = size();
  if (call.op == CommOp::all_to_all) {
    result.pieces = size();
    result.part /= static_cast<std::size_t>(size());
  }
  if (!result.only_root || call.root == rank()) result.exposed = call.input->raw();
  result.is_inline = result.bytes() <= (call.op == CommOp::all_reduce ? kInlineReduceBytes : kInlineBytes);
  return result;
}

void ShmGroup::run(const Collective& call, const CommAction& action) {
  throw_if_dead();
  const Plan cut = plan(call);
  begin(call, cut, action);
  if (cut.is_inline) {
    run_inline(call, cut);
  } else {
    meet();
    if (find_direct_sources(call, cut)) {
      run_direct(call, cut);
    } else {
      run_staged(call, cut);
    }
  }
  end();
}

// The slot of this parity was read two operations ago by ranks that have all begun the previous one since.
void ShmGroup::run_inline(const Collective& call, const Plan& cut) {
  const std::size_t slot = sequence_ % 2;
  if (cut.exposed != nullptr) kernels().copy(own().slots[slot].data(), cut.exposed, cut.bytes(), false);
  meet();
  if (cut.bytes() == 0) return;
  for (int other = 0; other < size(); ++other) {
    sources_[static_cast<std::size_t>(other)] = signals_.control(other).slots[slot].data();
  }
  consume(call, cut, 0, cut.part, cut.part);
}

bool ShmGroup::find_direct_sources(const Collective& call, const Plan& cut) {
  for (int other = 0; other < size(); ++other) {
    if (cut.only_root && other != call.root) continue;
    const Place place = record(other, sequence_).place.load();
    if (place.segment == kNoSegment) return false;
    sources_[static_cast<std::size_t>(other)] = peer_memory(other, place, cut.bytes());
  }
  return true;
}

void ShmGroup::run_direct(const Collective& call, const Plan& cut) {
  if (call.op == CommOp::all_reduce) {
    reduce_slices(call, cut);
    post_and_wait_all();
  } else {
    consume(call, cut, 0, cut.part, cut.part);
    leave_direct(call);
  }
}

// A rank may go on once nobody reads its tensor any more.
void ShmGroup::leave_direct(const Collective& call) {
  const std::uint32_t point = signals_.post();
  const bool is_root = call.root == rank();
  switch (call.op) {
    case CommOp::broadcast:
    case CommOp::scatter:
      if (is_root) wait_all(point);
      return;
    case CommOp::reduce:
    case CommOp::gather: {
      if (is_root) return;
      const WaitResult result = signals_.wait_for(call.root, point, options().timeout);
      if (result.kind != WaitResult::Kind::ready) fail_wait(result, point, call.root);
      return;
    }
    default:
      wait_all(point);
  }
}

// Block by block, last block first in every other operation: when a tensor is reduced again, the sweep begins with what
// the one before has left in the core's cache (a fifth less at 4 MiB); otherwise the direction makes no difference. The
// results are not written past the caches: their lines are there already, and at 2 ranks that takes 1.4 to 1.7 times as
// long at 64 MiB and 3 to 6 times at 1 to 4 MiB.
void ShmGroup::reduce_slices(const Collective& call, const Plan& cut) {
  const Slice slice = slice_of(cut.part, cut.item, rank(), size());
  const std::size_t block = kSweepBytes / cut.item;
  const std::size_t blocks = (slice.count + block - 1) / block;
  const bool backwards = sequence_ % 2 != 0;
  auto move_to = [this, &cut, at = std::size_t{0}](std::size_t element) mutable {
    const std::ptrdiff_t distance = static_cast<std::ptrdiff_t>(element) - static_cast<std::ptrdiff_t>(at);
    for (std::size_t other = 0; other < sources_.size(); ++other) {
      sources_[other] += distance * static_cast<std::ptrdiff_t>(cut.item);
      outputs_[other] = const_cast<std::byte*>(sources_[other]);  // in place: the tensors of all ranks
    }
    at = element;
  };
  for (std::size_t k = 0; k < blocks; ++k) {
    const std::size_t first = (backwards ? blocks - 1 - k : k) * block;
    move_to(slice.first + first);
    kernels().reduce({.dtype = cut.dtype,
                      .op = call.reduce,
                      .ranks = size(),
                      .sources = sources_.data(),
                      .outputs = outputs_.data(),
                      .output_count = size(),
                      .count = std::min(block, slice.count - first),
                      .stream = false});
  }
}

// Chunk j lies in bounce buffer j % 2. Waiting for all ranks to post chunk j + 1 proves that they have consumed chunk
// j.
void ShmGroup::run_staged(const Collective& call, const Plan& cut) {
  const std::size_t line = 64 / cut.item;
  const std::size_t chunk =
      std::max(kBounceBytes / static_cast<std::size_t>(cut.pieces) / cut.item / line, std::size_t{1}) * line;
  std::size_t buffer = 0;
  for (std::size_t first = 0; first < cut.part; first += chunk, buffer ^= 1) {
    const std::size_t count = std::min(chunk, cut.part - first);
    std::byte* bounce = own().bounce[buffer].data();
    for (int piece = 0; cut.exposed != nullptr && piece < cut.pieces; ++piece) {
      const std::size_t at = static_cast<std::size_t>(piece) * cut.part + first;
      kernels().copy(bounce + static_cast<std::size_t>(piece) * count * cut.item, cut.exposed + at * cut.item,
                     count * cut.item, false);
    }
    post_and_wait_all();
    for (int other = 0; other < size(); ++other) {
      sources_[static_cast<std::size_t>(other)] = signals_.control(other).bounce[buffer].data();
    }
    consume(call, cut, first, count, count);
  }
}

void ShmGroup::consume(const Collective& call, const Plan& cut, std::size_t first, std::size_t count,
                       std::size_t stride) {
  const auto self = static_cast<std::size_t>(rank());
  const bool is_root = call.root == rank();
  const std::size_t piece_bytes = stride * cut.item;
  const bool stream = cut.bytes() > kStreamBytes;
  const auto output = [&](std::size_t part) { return call.output->raw() + (part * cut.part + first) * cut.item; };
  const auto copy_parts = [&](std::size_t piece) {
    for (std::size_t other = 0; other < sources_.size(); ++other) {
      kernels().copy(output(other), sources_[other] + piece * piece_bytes, count * cut.item, stream);
    }
  };
  switch (call.op) {
    case CommOp::reduce:
      if (!is_root) return;
      break;
    case CommOp::reduce_scatter:
      for (const std::byte*& source : sources_) source += self * piece_bytes;
      break;
    case CommOp::all_reduce:
      break;
    case CommOp::broadcast:
      if (!is_root) kernels().copy(output(0), sources_[static_cast<std::size_t>(call.root)], count * cut.item, stream);
      return;
    case CommOp::scatter:
      kernels().copy(output(0), sources_[static_cast<std::size_t>(call.root)] + self * piece_bytes, count * cut.item,
                     stream);
      return;
    case CommOp::gather:
      if (is_root) copy_parts(0);
      return;
    case CommOp::all_gather:
      return copy_parts(0);
    case CommOp::all_to_all:
      return copy_parts(self);
    default:
      return;
  }
  std::byte* result = output(0);
  kernels().reduce({.dtype = cut.dtype,
                    .op = call.reduce,
                    .ranks = size(),
                    .sources = sources_.data(),
                    .outputs = &result,
                    .output_count = 1,
                    .count = count,
                    .stream = stream && call.input != call.output});
}

}  // namespace dtrun::runtime::shm
