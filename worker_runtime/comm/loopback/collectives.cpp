// What each rank of a LoopbackGroup does of a collective. No two ranks write the same bytes, and none writes what
// another one reads.
#include <fmt/format.h>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/comm/loopback/loopback_group.hpp"
#include "worker_runtime/device/launch.hpp"
#include "worker_runtime/kernels/rank_reduce.hpp"

namespace dtrun::runtime::loopback {
namespace {

template <class T>
void put_rank_reduce(Device& device, std::span<const std::byte* const> from, std::span<std::byte* const> to,
                     std::size_t first, std::size_t count, ReduceOp op) {
  if (count == 0) return;
  kernels::RankReduce<T> kernel{};
  std::vector<cuda::Access> accesses;
  const std::size_t bytes = count * sizeof(T);
  for (const std::byte* input : from) {
    kernel.in[kernel.ranks++] = reinterpret_cast<const T*>(input) + first;
    accesses.push_back({input + first * sizeof(T), bytes, false});
  }
  for (std::byte* output : to) {
    kernel.out[kernel.outs++] = reinterpret_cast<T*>(output) + first;
    accesses.push_back({output + first * sizeof(T), bytes, true});
  }
  kernel.op = static_cast<kernels::RankOp>(op);
  kernel.n = static_cast<std::int64_t>(count);
  device.launch(static_cast<int>(kernels::kernel_id<kernels::RankReduce<T>>), &kernel, sizeof kernel,
                {static_cast<std::uint32_t>(kernel.blocks()), kernel.kThreads, 0}, accesses);
}
static_assert(static_cast<int>(ReduceOp::product) == static_cast<int>(kernels::RankOp::product));
static_assert(LoopbackGroup::kMaxRanks == kernels::RankReduce<float>::kMaxRanks);

}  // namespace

void LoopbackGroup::put(const Collective& call, const std::vector<Posted>& ranks, std::size_t index) {
  std::vector<const Part*> parts;
  for (const Posted& posted : ranks) parts.push_back(&posted.parts[index]);
  if (reduces(call.op)) return put_reduction(call, parts);
  if (call.op != CommOp::barrier) put_copies(call, parts);
}

void LoopbackGroup::put_reduction(const Collective& call, const std::vector<const Part*>& parts) {
  const Tensor& tensor = *part_of(call);
  const auto count = static_cast<std::size_t>(tensor.numel());
  const auto n = parts.size(), own = static_cast<std::size_t>(rank());
  std::vector<const std::byte*> from;
  std::vector<std::byte*> to;
  for (const Part* part : parts) from.push_back(part->input);
  std::size_t first = 0, elements = count;
  if (call.op == CommOp::all_reduce) {  // a slice of everyone's, for everyone
    first = count * own / n;
    elements = count * (own + 1) / n - first;
    for (const Part* part : parts) to.push_back(part->output);
  } else if (call.op == CommOp::reduce_scatter) {
    const std::size_t offset = own * count * size_of(tensor.dtype());
    for (const std::byte*& input : from) input += offset;
    to = {parts[own]->output};
  } else {
    if (rank() != call.root) return;
    to = {parts[own]->output};
  }
  if (tensor.dtype() == DType::f32) return put_rank_reduce<float>(device(), from, to, first, elements, call.reduce);
  if (tensor.dtype() == DType::bf16)
    return put_rank_reduce<kernels::Bf16>(device(), from, to, first, elements, call.reduce);
  throw UsageError("comm", fmt::format("backend loopback reduces f32 and bf16, not {}", name_of(tensor.dtype())));
}

void LoopbackGroup::copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes != 0 && to != from) device().copy(to, from, bytes);
}

void LoopbackGroup::put_copies(const Collective& call, const std::vector<const Part*>& parts) {
  const Part& own = *parts[static_cast<std::size_t>(rank())];
  std::size_t bytes = part_of(call)->bytes();
  if (call.op == CommOp::all_to_all) bytes /= parts.size();
  const auto place = [&](int rank) { return static_cast<std::size_t>(rank) * bytes; };
  switch (call.op) {
    case CommOp::all_gather:
      for (int other = 0; other < size(); ++other)
        copy(own.output + place(other), parts[std::size_t(other)]->input, bytes);
      return;
    case CommOp::broadcast:
      return copy(own.output, parts[static_cast<std::size_t>(call.root)]->input, bytes);
    case CommOp::gather:
      for (int other = 0; other < size() && rank() == call.root; ++other)
        copy(own.output + place(other), parts[std::size_t(other)]->input, bytes);
      return;
    case CommOp::scatter:
      return copy(own.output, parts[static_cast<std::size_t>(call.root)]->input + place(rank()), bytes);
    case CommOp::all_to_all:
      for (int other = 0; other < size(); ++other)
        copy(own.output + place(other), parts[std::size_t(other)]->input + place(rank()), bytes);
      return;
    default:
      DTRUN_ASSERT(!"not a copy");
  }
}

}  // namespace dtrun::runtime::loopback
