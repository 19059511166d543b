// send and recv of a ShmGroup: the sender leaves a letter in its own control block, the receiver copies straight from
// the sender's memory and marks the letter as consumed. Messages of a pair are numbered; a receive belongs to the
// message of its own number.
#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "worker_runtime/comm/shm/shm_group.hpp"

namespace dtrun::runtime::shm {

class ShmGroup::SendState final : public Work::State {
 public:
  SendState(ShmGroup& group, int destination, std::uint32_t number)
      : group_(group), slot_(mail_slot(group.own(), destination, number)), destination_(destination), number_(number) {}

  bool done() override {
    if (Signals::reached_word(slot_.consumed, number_ + 1)) return true;
    group_.throw_if_dead();
    return false;
  }
  bool wait_until(Deadline deadline) override {
    if (done()) return true;
    const auto budget = std::min<Clock::duration>(deadline.remaining(), group_.options().timeout);
    const WaitResult result = group_.signals_.wait_word(slot_.consumed, number_ + 1, destination_, budget);
    if (result.kind == WaitResult::Kind::ready) return true;
    if (result.kind == WaitResult::Kind::deadline && budget < group_.options().timeout) return false;
    group_.fail_message(result, "send to", destination_, number_);
  }

 private:
  ShmGroup& group_;
  MailSlot& slot_;
  int destination_;
  std::uint32_t number_;
};

class ShmGroup::RecvState final : public Work::State {
 public:
  RecvState(ShmGroup& group, int source, std::uint32_t number, Tensor output, std::uint32_t tag)
      : group_(group), source_(source), number_(number), output_(std::move(output)), tag_(tag) {}

  bool done() override {
    if (done_) return true;
    group_.throw_if_dead();
    done_ = group_.receive_if_there(source_, number_, output_, tag_);
    return done_;
  }
  bool wait_until(Deadline deadline) override {
    if (done()) return true;
    const auto budget = std::min<Clock::duration>(deadline.remaining(), group_.options().timeout);
    const MailSlot& slot = mail_slot(group_.signals_.control(source_), group_.rank(), number_);
    const WaitResult result = group_.signals_.wait_word(slot.posted, number_ + 1, source_, budget);
    if (result.kind == WaitResult::Kind::ready) return done();
    if (result.kind == WaitResult::Kind::deadline && budget < group_.options().timeout) return false;
    group_.fail_message(result, "recv from", source_, number_);
  }

 private:
  ShmGroup& group_;
  int source_;
  std::uint32_t number_;
  Tensor output_;
  std::uint32_t tag_;
  bool done_ = false;
};

Work ShmGroup::start(const Collective& call, const CommAction&) {
  throw_if_dead();
  Pair& pair = pairs_[static_cast<std::size_t>(call.root)];
  if (call.op == CommOp::recv)
    return Work(std::make_shared<RecvState>(*this, call.root, pair.received++, *call.output, call.tag));
  const std::uint32_t number = pair.sent++;
  MailSlot& slot = mail_slot(own(), call.root, number);
  if (number >= kMailSlots) {
    const WaitResult result = signals_.wait_word(slot.consumed, number + 1 - kMailSlots, call.root, options().timeout);
    if (result.kind != WaitResult::Kind::ready) fail_message(result, "send to", call.root, number);
  }
  Tensor& held = pair.held[number % kMailSlots];
  held = *call.input;
  if (domain_->pool->find(held.raw(), held.bytes()).segment == kNoSegment) {
    held = allocate(call.input->shape(), call.input->dtype(), MemoryTag::comm);
    held.copy_from(*call.input);
  }
  slot.letter.store({.count = static_cast<std::uint64_t>(held.numel()),
                     .dtype = static_cast<std::uint32_t>(held.dtype()),
                     .tag = call.tag,
                     .place = domain_->pool->find(held.raw(), held.bytes())});
  signals_.post_word(slot.posted, number + 1, call.root);
  return Work(std::make_shared<SendState>(*this, call.root, number));
}

bool ShmGroup::receive_if_there(int source, std::uint32_t number, const Tensor& output, std::uint32_t tag) {
  MailSlot& slot = mail_slot(signals_.control(source), rank(), number);
  if (!Signals::reached_word(slot.posted, number + 1)) return false;
  const Letter letter = slot.letter.load();
  if (letter.count != static_cast<std::uint64_t>(output.numel()) ||
      letter.dtype != static_cast<std::uint32_t>(output.dtype()) || letter.tag != tag) {
    fail(fmt::format("group \"{}\": message {} from rank {} to rank {}: sent {} x {} tag {}, expected {} x {} tag {}",
                     name(), number, job_rank(source), job_rank(rank()), name_of(static_cast<DType>(letter.dtype)),
                     letter.count, letter.tag, name_of(output.dtype()), output.numel(), tag));
  }
  if (output.bytes() != 0) std::memcpy(output.raw(), peer_memory(source, letter.place, output.bytes()), output.bytes());
  signals_.post_word(slot.consumed, number + 1, source);
  return true;
}

}  // namespace dtrun::runtime::shm
