#include "worker_runtime/comm/gloo/gloo_group.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/comm/gloo/link.hpp"

namespace dtrun::runtime::gloo {

// Tensors are given back by whichever thread drops them last, perhaps after the group.
struct GlooGroup::Arenas {
  std::mutex mutex;
  MemoryAccount unaccounted;
  std::array<std::optional<Arena>, kMemoryTags> arenas;
};

GlooGroup::GlooGroup(std::unique_ptr<Mesh> mesh, std::vector<Origin> origins, int rank, GroupOptions group_options)
    : ProcessGroup(rank, static_cast<int>(origins.size()), std::move(group_options)),
      arenas_(std::make_shared<Arenas>()),
      origins_(std::move(origins)),
      farewell_(std::make_unique<Farewell>()),
      links_(origins_.size()),
      mesh_(std::move(mesh)) {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank) continue;
    auto& made = *(links_[static_cast<std::size_t>(peer)] = std::make_unique<Link>());
    made.farewell_in = mesh_->buffer(&made.farewell, sizeof made.farewell);
    made.farewell_out = mesh_->buffer(farewell_.get(), sizeof *farewell_);
    made.never = mesh_->buffer(&made.never_data, 1);
    // A peer that is gone already breaks these too.
    mesh_->receive(*made.farewell_in, peer, kFarewells, 0, sizeof made.farewell);
    mesh_->receive(*made.never, peer, kNever, 0, 1);
    for (const std::size_t parity : {1U, 0U}) {  // the first operation is number 1
      made.in_buffer[parity] = mesh_->buffer(&made.in[parity], sizeof(Meeting));
      made.out_buffer[parity] = mesh_->buffer(&made.out[parity], sizeof(Meeting));
      mesh_->receive(*made.in_buffer[parity], peer, kMeet, 0, sizeof(Meeting));
    }
  }
}

// The connections go before the memory that they may still write to.
GlooGroup::~GlooGroup() {
  stop_thread();
  if (!dead_.load(std::memory_order_acquire)) say_farewell(false, {});
  mesh_->close();
}

Tensor GlooGroup::allocate(const Shape& shape, DType dtype, MemoryTag tag) {
  const auto bytes = static_cast<std::size_t>(shape.numel()) * size_of(dtype);
  const std::lock_guard lock(arenas_->mutex);
  auto& arena = arenas_->arenas[static_cast<std::size_t>(tag)];
  if (!arena) arena.emplace(tag, options().account != nullptr ? *options().account : arenas_->unaccounted);
  auto block = arena->allocate(bytes);
  std::byte* data = block->data();
  auto release = [arenas = arenas_, block = std::move(block)](std::byte*, std::size_t) mutable {
    const std::lock_guard guard(arenas->mutex);
    block.reset();
  };
  return Tensor::from_storage(std::make_shared<Storage>(data, bytes, std::move(release)), 0, shape, dtype);
}

Tensor GlooGroup::allocate_staging(std::int64_t bytes) {
  Arena arena(MemoryTag::comm, arenas_->unaccounted);
  return Tensor::empty({bytes}, DType::u8, arena);
}

void GlooGroup::run(const Collective& call, const CommAction& action) {
  throw_if_dead();
  const Plan cut = plan(call);
  meet(call, cut, action);
  if (cut.is_inline) {
    finish_inline(call, cut);
  } else if (reduces(call.op)) {
    sum_parts(call, cut);
  } else {
    exchange(call, cut);
  }
  const std::size_t parity = sequence_ % 2;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    link(peer).in[parity].descriptor.sequence = 0;
    mesh_->receive(*link(peer).in_buffer[parity], peer, kMeet, 0, sizeof(Meeting));
  }
}

// A peer that left after its part was done breaks later receives only; so what cannot be sent or asked for is reported
// where it is waited for.
void GlooGroup::meet(const Collective& call, const Plan& cut, const CommAction& action) {
  ++sequence_;
  const std::size_t parity = sequence_ % 2;
  descriptor_ = descriptor_of(call, sequence_, cut.count, cut.dtype, action);
  label_ = action.label;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    Link& to = link(peer);
    to.arrived = false;
    if (to.out_busy[parity]) await(*to.out_buffer[parity], Wait::send, peer);
    to.out[parity].descriptor = descriptor_;
    to.out[parity].label = label_;
    const Piece piece = cut.is_inline ? outgoing(call, cut, peer) : Piece{};
    if (piece.bytes != 0) std::memcpy(to.out[parity].data.data(), piece.data, piece.bytes);
    to.out_busy[parity] = mesh_->send(*to.out_buffer[parity], peer, kMeet, 0, kMeetingBytes + piece.bytes);
  }
  meeting_ = true;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    Link& from = link(peer);
    await(*from.in_buffer[parity], Wait::receive, peer);
    from.arrived = from.any = true;
    from.last = from.in[parity].descriptor;
    from.last_label = from.in[parity].label;
  }
  meeting_ = false;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank() && std::memcmp(&link(peer).last, &descriptor_, sizeof descriptor_) != 0) fail_mismatch();
  }
}

void GlooGroup::await(Buffer& buffer, Wait what, int peer) {
  const auto take = [&](Deadline until) {
    return what == Wait::receive ? buffer.take_received(until) : buffer.take_sent(until);
  };
  const Deadline deadline = Deadline::after(options().timeout);
  for (;;) {
    const bool dead = gone(peer);  // asked first: what came before its end counts
    auto state = take(Deadline(std::min(deadline.at(), Clock::now() + kLook)));
    if (dead && state == Buffer::State::waiting)
      state = take(Deadline::after(kLook));  // the first may have been cut short
    if (state == Buffer::State::ready) return;
    throw_if_failed_elsewhere();
    if (dead || state == Buffer::State::broken) fail_gone(peer);
    for (int other = 0; meeting_ && other < size(); ++other) {
      if (other != rank() && gone(other) && missing(other)) fail_gone(other);
    }
    if (deadline.passed()) fail_deadline(peer);
  }
}

bool GlooGroup::gone(int peer) {
  const std::lock_guard lock(look_mutex_);
  Link& to = link(peer);
  if (!to.gone) to.gone = to.never->broken();
  return to.gone;
}

bool GlooGroup::missing(int peer) {
  Link& from = link(peer);
  return !from.arrived && peek(from.in[sequence_ % 2].descriptor.sequence) != sequence_;
}

void GlooGroup::post_send(Buffer& buffer, int peer, std::uint64_t slot, std::size_t offset, std::size_t bytes) {
  if (mesh_->send(buffer, peer, slot, offset, bytes)) return;
  throw_if_failed_elsewhere();
  fail_gone(peer);
}

void GlooGroup::post_receive(Buffer& buffer, int peer, std::uint64_t slot, std::size_t offset, std::size_t bytes) {
  if (mesh_->receive(buffer, peer, slot, offset, bytes)) return;
  throw_if_failed_elsewhere();
  fail_gone(peer);
}

}  // namespace dtrun::runtime::gloo
