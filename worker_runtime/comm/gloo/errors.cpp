// What a GlooGroup says when it dies, and how it tells the other ranks.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/comm/gloo/gloo_group.hpp"
#include "worker_runtime/comm/gloo/link.hpp"

namespace dtrun::runtime::gloo {

void GlooGroup::throw_if_dead() {
  if (!dead_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(error_mutex_);
  throw CommError("comm", first_error_);
}

void GlooGroup::fail(const std::string& text) {
  const std::lock_guard lock(error_mutex_);
  if (!dead_.load(std::memory_order_relaxed)) {
    first_error_ = text;
    say_farewell(true, text);
    dead_.store(true, std::memory_order_release);
  }
  throw CommError("comm", first_error_);
}

// Waits until it is in the kernel's hands, but not long: a peer that is stopped or cut off does not take it.
void GlooGroup::say_farewell(bool failed, const std::string& text) noexcept {
  farewell_->said = 1;
  farewell_->failed = failed ? 1 : 0;
  farewell_->length = static_cast<std::uint32_t>(std::min(text.size(), farewell_->text.size()));
  std::memcpy(farewell_->text.data(), text.data(), farewell_->length);
  const std::size_t bytes = offsetof(Farewell, text) + farewell_->length;
  std::vector<Buffer*> sent;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank() || gone(peer)) continue;
    Buffer& out = *link(peer).farewell_out;
    if (mesh_->send(out, peer, kFarewells, 0, bytes)) sent.push_back(&out);
  }
  const Deadline deadline = Deadline::after(kFarewell);
  for (Buffer* out : sent) out->take_sent(deadline);
}

void GlooGroup::throw_if_failed_elsewhere() {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank() || fate(peer) != Fate::failed) continue;
    const Farewell& last = link(peer).farewell;
    fail(std::string(last.text.data(), std::min<std::size_t>(last.length, last.text.size())));
  }
}

Fate GlooGroup::fate(int peer) {
  const std::lock_guard lock(look_mutex_);
  Link& from = link(peer);
  for (int tries = 0; tries < 2 && from.fate == Fate::present && peek(from.farewell.said) != 0; ++tries) {
    if (from.farewell_in->take_received(Deadline::after(kLook)) == Buffer::State::ready)
      from.fate = from.farewell.failed != 0 ? Fate::failed : Fate::left;
  }
  return from.fate;
}

std::string GlooGroup::name_of_rank(int rank) const {
  const Origin& origin = origins_[static_cast<std::size_t>(rank)];
  return fmt::format("rank {} (pid {} on {})", origin.rank, origin.pid, origin.host_name);
}

std::string GlooGroup::last_of(int rank) {
  const Link& from = link(rank);
  if (!from.any) return "no operation yet";
  return fmt::format("number {}: {}", from.last.sequence, describe(from.last, from.last_label));
}

std::string GlooGroup::here() const { return fmt::format("number {}: {}", sequence_, describe(descriptor_, label_)); }

void GlooGroup::fail_gone(int peer) {
  fail(fmt::format("group \"{}\": {} {}; its last operation: {}; rank {} waited for it in {}", name(),
                   name_of_rank(peer), fate(peer) == Fate::left ? "left the group" : "died or was cut off",
                   last_of(peer), job_rank(rank()), here()));
}

void GlooGroup::fail_deadline(int peer) {
  std::string text = fmt::format("group \"{}\": rank {} on {} waited {} s in {}; missing:", name(), job_rank(rank()),
                                 origins_[static_cast<std::size_t>(rank())].host_name,
                                 std::chrono::duration<double>(options().timeout).count(), here());
  for (int other = 0; other < size(); ++other) {
    if (other == rank() || (meeting_ ? !missing(other) : other != peer)) continue;
    text += fmt::format("\n  {}, its last operation: {}", name_of_rank(other), last_of(other));
  }
  fail(text);
}

void GlooGroup::fail_mismatch() {
  std::string text =
      fmt::format("group \"{}\": the ranks called different operations as number {}:", name(), sequence_);
  for (int other = 0; other < size(); ++other) {
    text += fmt::format(
        "\n  rank {} on {}: {}", job_rank(other), origins_[static_cast<std::size_t>(other)].host_name,
        other == rank() ? describe(descriptor_, label_) : describe(link(other).last, link(other).last_label));
  }
  fail(text);
}

}  // namespace dtrun::runtime::gloo
