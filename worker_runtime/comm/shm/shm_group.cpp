#include "worker_runtime/comm/shm/shm_group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime::shm {

namespace {

std::vector<Peer*> peers_of(const Domain& domain, const std::vector<int>& members) {
  std::vector<Peer*> peers;
  for (const int member : members) peers.push_back(domain.peers[static_cast<std::size_t>(member)].get());
  return peers;
}

std::int64_t now_ns() { return Clock::now().time_since_epoch().count(); }

}  // namespace

ShmGroup::ShmGroup(std::shared_ptr<Domain> domain, std::vector<int> members, std::vector<Control*> controls, int rank,
                   GroupOptions group_options)
    : ProcessGroup(rank, static_cast<int>(members.size()), std::move(group_options)),
      domain_(std::move(domain)),
      members_(std::move(members)),
      signals_(rank, std::move(controls), peers_of(*domain_, members_), domain_->spin),
      sources_(members_.size()),
      outputs_(members_.size()),
      pairs_(members_.size()) {}

ShmGroup::~ShmGroup() {
  stop_thread();
  if (!dead_.load(std::memory_order_acquire)) signals_.announce(State::left);
}

Tensor ShmGroup::allocate(const Shape& shape, DType dtype, MemoryTag tag) {
  const auto bytes = static_cast<std::size_t>(shape.numel()) * size_of(dtype);
  const std::size_t charged =
      (std::max<std::size_t>(bytes, 1) + Pool::kAlignment - 1) / Pool::kAlignment * Pool::kAlignment;
  std::byte* data = domain_->pool->allocate(bytes);
  MemoryAccount* account = options().account;
  if (account != nullptr) account->add(tag, charged);
  const auto release = [pool = domain_->pool, account, tag, charged](std::byte* block, std::size_t size) {
    if (account != nullptr) account->remove(tag, charged);
    pool->release(block, size);
  };
  return Tensor::from_storage(std::make_shared<Storage>(data, bytes, release), 0, shape, dtype);
}

void ShmGroup::begin(const Collective& call, const Plan& plan, const CommAction& action) {
  ++sequence_;
  Record& entry = record(rank(), sequence_);
  entry.descriptor.store(descriptor_of(call, sequence_, plan.count, plan.dtype, action));
  entry.place.store(plan.exposed != nullptr && !plan.is_inline ? domain_->pool->find(plan.exposed, plan.bytes())
                                                               : Place{});
  entry.times.store({now_ns(), 0});
  entry.label.store(action.label);
  own().sequence.store(sequence_, std::memory_order_relaxed);
}

void ShmGroup::end() {
  Record& entry = record(rank(), sequence_);
  entry.times.store({entry.times.load().started, now_ns()});
}

void ShmGroup::wait_all(std::uint32_t point) {
  if (const WaitResult result = signals_.wait_all(point, options().timeout); result.kind != WaitResult::Kind::ready) {
    fail_wait(result, point, -1);
  }
}

void ShmGroup::post_and_wait_all() { wait_all(signals_.post()); }

void ShmGroup::meet() {
  post_and_wait_all();
  const Descriptor mine = record(rank(), sequence_).descriptor.load();
  for (int other = 0; other < size(); ++other) {
    const Descriptor theirs = record(other, sequence_).descriptor.load();
    if (std::memcmp(&mine, &theirs, sizeof(mine)) != 0) fail_mismatch();
  }
}

std::byte* ShmGroup::peer_memory(int other, const Place& place, std::size_t bytes) {
  if (other == rank()) return domain_->pool->at(place);
  try {
    return peer(other)->at(place, bytes);
  } catch (const Error& error) {
    fail(fmt::format("group \"{}\": {}", name(), error.what()));
  }
}

Control* make_control(Pool& pool, int ranks) {
  std::byte* block = pool.allocate(control_bytes(ranks) + alignof(Control));
  const auto address = reinterpret_cast<std::uintptr_t>(block);
  block += (alignof(Control) - address % alignof(Control)) % alignof(Control);
  // Fresh pages are zero, used ones may not be; the big buffers are never read before they are written.
  std::memset(block, 0, offsetof(Control, slots));
  std::memset(block + sizeof(Control), 0, control_bytes(ranks) - sizeof(Control));
  return reinterpret_cast<Control*>(block);
}

}  // namespace dtrun::runtime::shm
