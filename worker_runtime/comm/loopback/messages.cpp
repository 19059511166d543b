// send and recv of a LoopbackGroup: the receiver copies, on its stream for messages.
#include <fmt/format.h>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/comm/loopback/loopback_group.hpp"

namespace dtrun::runtime::loopback {

class LoopbackGroup::Sent final : public Work::State {
 public:
  Sent(LoopbackGroup& group, const Tensor& tensor, int to, std::uint32_t tag)
      : group_(group), tensor_(tensor), to_(to), letter_(std::make_shared<Letter>()) {
    letter_->data = tensor.device_raw();
    letter_->count = static_cast<std::uint64_t>(tensor.numel());
    letter_->dtype = tensor.dtype();
    letter_->tag = tag;
    letter_->ready = group.device().current().record();
    group.hub_->post({group.rank(), to, group.letters_[{to, true}]++}, letter_);
  }
  bool done() override { return taken(Deadline(Clock::now())) && letter_->copied.done(); }
  bool wait_until(Deadline deadline) override {
    const auto limit = Deadline::after(group_.options().timeout);
    if (!taken(deadline.at() < limit.at() ? deadline : limit)) {
      if (deadline.at() < limit.at()) return false;
      group_.hub_->fail(fmt::format("group \"{}\": rank {} waited in vain in send; missing: rank {}", group_.name(),
                                    group_.rank(), to_));
    }
    group_.device().current().wait(letter_->copied);
    tensor_ = Tensor();
    return true;
  }

 private:
  bool taken(Deadline deadline) const { return group_.hub_->await_taken(*letter_, to_, deadline); }
  LoopbackGroup& group_;
  Tensor tensor_;
  const int to_;
  std::shared_ptr<Letter> letter_;
};

class LoopbackGroup::Received final : public Work::State {
 public:
  Received(LoopbackGroup& group, const Tensor& tensor, int from, std::uint32_t tag)
      : group_(group),
        tensor_(tensor),
        address_{from, group.rank(), group.letters_[{from, false}]++},
        tag_(tag),
        ready_(group.device().current().record()) {}
  bool done() override { return copied(Deadline(Clock::now())) && copied_.done(); }
  bool wait_until(Deadline deadline) override {
    const auto limit = Deadline::after(group_.options().timeout);
    if (!copied(deadline.at() < limit.at() ? deadline : limit)) {
      if (deadline.at() < limit.at()) return false;
      group_.hub_->fail(fmt::format("group \"{}\": rank {} waited in vain in recv; missing: rank {}", group_.name(),
                                    group_.rank(), address_.from));
    }
    group_.device().current().wait(copied_);
    tensor_ = Tensor();
    return true;
  }

 private:
  bool copied(Deadline deadline) {
    if (copied_.defined()) return true;
    const auto letter = group_.hub_->take(address_, deadline);
    if (!letter) return false;
    if (letter->count != static_cast<std::uint64_t>(tensor_.numel()) || letter->dtype != tensor_.dtype() ||
        letter->tag != tag_) {
      group_.hub_->fail(
          fmt::format("group \"{}\": rank {} sends {} x {} with tag {}, rank {} receives {} x {} with tag {}",
                      group_.name(), address_.from, name_of(letter->dtype), letter->count, letter->tag, address_.to,
                      name_of(tensor_.dtype()), tensor_.numel(), tag_));
    }
    Stream& stream = group_.messages_;
    stream.wait(ready_);
    stream.wait(letter->ready);
    const StreamGuard guard(stream);
    group_.copy(tensor_.device_raw(), letter->data, tensor_.bytes());
    copied_ = stream.record();
    group_.hub_->mark_taken(*letter, copied_);
    return true;
  }
  LoopbackGroup& group_;
  Tensor tensor_;
  const Hub::Address address_;
  const std::uint32_t tag_;
  const Event ready_;
  Event copied_;
};

Work LoopbackGroup::start(const Collective& call, const CommAction&) {
  const bool sends = call.op == CommOp::send;
  const Tensor& tensor = sends ? *call.input : *call.output;
  if (tensor.device() == nullptr) throw UsageError("comm", "backend loopback sends memory of the device only");
  std::erase_if(messages_on_their_way_, [](const auto& message) { return message->done(); });
  std::shared_ptr<Work::State> message;
  if (sends) {
    message = std::make_shared<Sent>(*this, tensor, call.root, call.tag);
  } else {
    message = std::make_shared<Received>(*this, tensor, call.root, call.tag);
  }
  messages_on_their_way_.push_back(message);
  return Work(message);
}

}  // namespace dtrun::runtime::loopback
