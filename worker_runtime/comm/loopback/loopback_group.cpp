#include "worker_runtime/comm/loopback/loopback_group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/comm/split.hpp"
#include "worker_runtime/comm/staged_calls.hpp"
#include "worker_runtime/device/launch.hpp"

namespace dtrun::runtime::loopback {
namespace {

Device& required(Device* device) {
  if (device == nullptr) throw UsageError("comm", "backend loopback needs a device");
  return *device;
}

MemoryAccount& unaccounted() {
  static MemoryAccount account;
  return account;
}

Part part_for(const Collective& call, std::uint64_t sequence, const CommAction& action) {
  const Tensor* part = part_of(call);
  const auto count = part == nullptr ? 0 : static_cast<std::uint64_t>(part->numel());
  Part result{descriptor_of(call, sequence, count, part == nullptr ? DType::u8 : part->dtype(), action), action.label};
  if (call.input != nullptr) result.input = call.input->device_raw();
  if (call.output != nullptr) result.output = call.output->device_raw();
  return result;
}

}  // namespace

// Done when every rank has finished with this rank's memory. Keeps the tensors until the current stream waits for that.
class LoopbackGroup::Ended final : public Work::State {
 public:
  Ended(LoopbackGroup& group, Hub::Round ends, std::vector<Tensor> tensors)
      : device_(group.device()), ends_(std::move(ends)), tensors_(std::move(tensors)) {}
  ~Ended() override { finish(); }

  bool done() override {
    return !ends_ || std::ranges::all_of(*ends_, [](const Posted& rank) { return rank.event.done(); });
  }
  bool wait_until(Deadline) override {
    finish();
    return true;
  }

 private:
  void finish() {
    if (!ends_) return;
    for (const Posted& rank : *ends_) device_.current().wait(rank.event);
    ends_.reset();
    tensors_.clear();
  }
  Device& device_;
  Hub::Round ends_;
  std::vector<Tensor> tensors_;
};

LoopbackGroup::LoopbackGroup(std::shared_ptr<Hub> hub, int rank, const GroupOptions& group_options)
    : ProcessGroup(rank, hub->size(), group_options),
      hub_(std::move(hub)),
      gather_(required(options().device), name() + " gather"),
      reduce_(device(), name() + " reduce"),
      messages_(device(), name() + " messages") {
  if (size() > kMaxRanks)
    throw UsageError("comm", fmt::format("backend loopback has {} ranks, expected at most {}", size(), kMaxRanks));
}

LoopbackGroup::~LoopbackGroup() { hub_->leave(rank()); }

Tensor LoopbackGroup::allocate(const Shape& shape, DType dtype, MemoryTag tag) {
  auto& arena = arenas_[static_cast<std::size_t>(tag)];
  if (!arena) arena.emplace(tag, account() != nullptr ? *account() : unaccounted(), &device());
  return Tensor::empty(shape, dtype, *arena);
}

std::string LoopbackGroup::doing(const Collective& call, const CommAction& action) const {
  const Part part = part_for(call, sequence_, action);
  return describe(part.descriptor, part.label);
}

Hub::Round LoopbackGroup::meet(std::span<const Collective> calls, const CommAction& action, Event ready) {
  Posted mine;
  for (const Collective& call : calls) mine.parts.push_back(part_for(call, sequence_++, action));
  mine.event = std::move(ready);
  const auto text = calls.empty() ? std::string("split") : doing(calls[0], action);
  return hub_->exchange(rank(), std::move(mine), Deadline::after(options().timeout), text);
}

void LoopbackGroup::require_equal(const std::vector<Posted>& ranks) {
  const auto is_like_first = [&](const Posted& posted) {
    return std::ranges::equal(posted.parts, ranks[0].parts, [](const Part& a, const Part& b) {
      return std::memcmp(&a.descriptor, &b.descriptor, sizeof a.descriptor) == 0;
    });
  };
  if (std::ranges::all_of(ranks, is_like_first)) return;
  std::string text = fmt::format("group \"{}\": the ranks called different operations:", name());
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    text += fmt::format("\n  rank {}:", rank);
    for (const Part& part : ranks[rank].parts) text += " " + describe(part.descriptor, part.label);
  }
  hub_->fail(text);
}

Work LoopbackGroup::start_all(std::span<const Collective> calls, const CommAction& action) {
  if (calls.empty()) return Work();
  if (StagedCalls::needed(calls)) {
    Arena arena(MemoryTag::comm, unaccounted(), &device());
    const StagedCalls staged(calls, arena);
    start_all(staged.calls(), action).wait();
    staged.copy_back(rank());
    return Work();
  }
  const auto ready = meet(calls, action, device().current().record());
  require_equal(*ready);
  Stream& stream = reduces(calls[0].op) ? reduce_ : gather_;
  for (const Posted& other : *ready) stream.wait(other.event);
  {
    const StreamGuard guard(stream);
    for (std::size_t index = 0; index < calls.size(); ++index) put(calls[index], *ready, index);
  }
  Posted end;
  end.event = stream.record();
  auto ends = hub_->exchange(rank(), std::move(end), Deadline::after(options().timeout), doing(calls[0], action));
  std::vector<Tensor> tensors;
  for (const Collective& call : calls) {
    if (call.input != nullptr) tensors.push_back(*call.input);
    if (call.output != nullptr && call.output != call.input) tensors.push_back(*call.output);
  }
  return Work(std::make_shared<Ended>(*this, std::move(ends), std::move(tensors)));
}

std::unique_ptr<ProcessGroup> LoopbackGroup::split(std::span<const int> ranks, const std::string& name) {
  const int place = place_in_split(ranks, rank(), size(), name);
  meet({}, {}, Event());
  const int number = splits_++;
  if (place < 0) return nullptr;
  GroupOptions inner = options();
  inner.name = name;
  return std::make_unique<LoopbackGroup>(hub_->child(number, {ranks.begin(), ranks.end()}, name), place, inner);
}

}  // namespace dtrun::runtime::loopback
