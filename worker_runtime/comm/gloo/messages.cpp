// send and recv of a GlooGroup: a letter says what comes; the data follows when the receiver, having read the letter,
// asks for it; an answer says that it has arrived. Messages of a pair are numbered; a receive belongs to the message of
// its own number.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/comm/gloo/gloo_group.hpp"
#include "worker_runtime/comm/gloo/link.hpp"

namespace dtrun::runtime::gloo {

namespace {

const Deadline kNoDeadline(Clock::time_point::max());  // the timeout of the group counts

}  // namespace

// Kept by the link until they have ended: dropping the Work cancels nothing.
struct GlooGroup::Message : Work::State {
  Message(GlooGroup& group_in, CommOp op, int peer_in, std::uint64_t number_in, Tensor tensor_in)
      : group(group_in),
        peer(peer_in),
        number(number_in),
        slot(kMessage + 2 * number_in),
        text(fmt::format("{} rank {} (message {})", op == CommOp::send ? "send to" : "recv from",
                         group_in.job_rank(peer_in), number_in)),
        tensor(std::move(tensor_in)),
        letter_buffer(group.mesh_->buffer(&letter, sizeof letter)),
        data_buffer(group.mesh_->buffer(tensor.raw(), tensor.bytes())),
        answer_buffer(group.mesh_->buffer(&answer, sizeof answer)) {}

  bool done() override { return wait_until(Deadline(Clock::now())); }
  void expect(bool posted) {
    if (!posted) group.fail_message(peer, text);
  }
  bool await(Buffer& buffer, Wait what, Deadline deadline) {
    return group.await_message(buffer, what, peer, deadline, text);
  }

  GlooGroup& group;
  int peer;
  std::uint64_t number, slot;
  std::string text;
  Tensor tensor;
  Letter letter{};
  std::uint32_t answer = 0;
  std::unique_ptr<Buffer> letter_buffer, data_buffer, answer_buffer;
  bool ended = false;
};

struct GlooGroup::Sent final : Message {
  Sent(GlooGroup& group_in, int destination, std::uint64_t number_in, const Tensor& input, std::uint32_t tag)
      : Message(group_in, CommOp::send, destination, number_in, input) {
    letter = {static_cast<std::uint64_t>(input.numel()), static_cast<std::uint32_t>(input.dtype()), tag, 1, 0};
    Mesh& mesh = *group.mesh_;
    expect(mesh.receive(*answer_buffer, peer, slot + 1, 0, sizeof answer) &&
           mesh.send(*letter_buffer, peer, kLetter, 0, sizeof letter) &&
           mesh.send(*data_buffer, peer, slot, 0, tensor.bytes()));
  }

  bool wait_until(Deadline deadline) override {
    if (ended) return true;
    // A glance costs nothing; Gloo cannot be asked whether something has come.
    if (deadline.passed() && peek(answer) == 0) {
      group.throw_if_dead();
      return false;
    }
    if (!await(*answer_buffer, Wait::receive, peek(answer) != 0 ? kNoDeadline : deadline)) return false;
    await(*letter_buffer, Wait::send, kNoDeadline);
    await(*data_buffer, Wait::send, kNoDeadline);
    tensor = Tensor();
    return ended = true;
  }
};

struct GlooGroup::Received final : Message {
  Received(GlooGroup& group_in, int source, std::uint64_t number_in, const Tensor& output, std::uint32_t tag_in)
      : Message(group_in, CommOp::recv, source, number_in, output), tag(tag_in) {
    answer = 1;
    expect(group.mesh_->receive(*letter_buffer, peer, kLetter, 0, sizeof letter));
  }

  bool wait_until(Deadline deadline) override {
    if (ended) return true;
    const bool there = peek(letter.written) != 0;
    if (deadline.passed() && !there) {
      group.throw_if_dead();
      return false;
    }
    if (!await(*letter_buffer, Wait::receive, there ? kNoDeadline : deadline)) return false;
    read_letter();
    Mesh& mesh = *group.mesh_;
    expect(mesh.receive(*data_buffer, peer, slot, 0, tensor.bytes()));
    await(*data_buffer, Wait::receive, kNoDeadline);
    expect(mesh.send(*answer_buffer, peer, slot + 1, 0, sizeof answer));
    await(*answer_buffer, Wait::send, kNoDeadline);
    tensor = Tensor();
    return ended = true;
  }

  void read_letter() {
    if (letter.count == static_cast<std::uint64_t>(tensor.numel()) &&
        letter.dtype == static_cast<std::uint32_t>(tensor.dtype()) && letter.tag == tag)
      return;
    group.fail(fmt::format(
        "group \"{}\": message {} from rank {} to rank {}: sent {} x {} tag {}, expected {} x {} tag {}", group.name(),
        number, group.job_rank(peer), group.job_rank(group.rank()), name_of(static_cast<DType>(letter.dtype)),
        letter.count, letter.tag, name_of(tensor.dtype()), tensor.numel(), tag));
  }

  std::uint32_t tag;
};

Work GlooGroup::start(const Collective& call, const CommAction&) {
  throw_if_dead();
  Link& peer = link(call.root);
  auto& under_way = call.op == CommOp::send ? peer.sending : peer.receiving;
  if (call.op == CommOp::send && under_way.size() >= kMailSlots) under_way.front()->wait_until(kNoDeadline);
  std::erase_if(under_way, [](const auto& state) { return static_cast<const Message&>(*state).ended; });
  if (call.op == CommOp::send) {
    under_way.push_back(std::make_shared<Sent>(*this, call.root, peer.sent++, *call.input, call.tag));
  } else {
    under_way.push_back(std::make_shared<Received>(*this, call.root, peer.received++, *call.output, call.tag));
  }
  return Work(under_way.back());
}

// False when `deadline` passed before the timeout of the group.
bool GlooGroup::await_message(Buffer& buffer, Wait what, int peer, Deadline deadline, const std::string& text) {
  const Deadline limit = Deadline::after(options().timeout);
  for (int tries = 0;;) {
    const auto end = std::min(deadline.at(), limit.at());
    const Deadline next(std::min(end, Clock::now() + kLook));
    const bool dead = gone(peer);
    const auto state = what == Wait::receive ? buffer.take_received(next) : buffer.take_sent(next);
    if (state == Buffer::State::ready) return true;
    throw_if_dead();
    throw_if_failed_elsewhere();
    if (state == Buffer::State::broken || (dead && tries++ > 0)) fail_message(peer, text);
    if (!Deadline(end).passed()) continue;
    if (end != limit.at()) return false;
    fail(fmt::format("group \"{}\": rank {} waited {} s in {}; missing: {}", name(), job_rank(rank()),
                     std::chrono::duration<double>(options().timeout).count(), text, name_of_rank(peer)));
  }
}

void GlooGroup::fail_message(int peer, const std::string& text) {
  throw_if_failed_elsewhere();
  fail(fmt::format("group \"{}\": {} {}; rank {} waited for it in {}", name(), name_of_rank(peer),
                   fate(peer) == Fate::left ? "left the group" : "died or was cut off", job_rank(rank()), text));
}

}  // namespace dtrun::runtime::gloo
