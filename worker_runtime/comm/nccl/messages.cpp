// send and recv of a NcclGroup.
#include <fmt/format.h>

#include <cstring>
#include <thread>
#include <utility>

#include "rendezvous/base/error.hpp"
#include "rendezvous/store/store.hpp"
#include "worker_runtime/comm/nccl/errors.hpp"
#include "worker_runtime/comm/nccl/lane.hpp"

namespace dtrun::runtime::nccl {

namespace {
using namespace std::chrono_literals;
}

NcclGroup::Message::Message(NcclGroup& group, Lane& lane, Called called, Tensor tensor, Tensor host, std::uint32_t tag)
    : StreamWork(group.domain_, {}, host.defined()),
      group_(group),
      lane_(lane),
      called_(std::move(called)),
      tensor_(std::move(tensor)),
      host_(std::move(host)),
      tag_(tag),
      before_(group.device().current().record()),
      limit_(Clock::now() + group.options().timeout) {}

bool NcclGroup::Message::is_on_stream() {
  if (!on_stream_) group_.advance_messages();
  return on_stream_;
}

bool NcclGroup::Message::await_start(Deadline deadline) {
  while (!is_on_stream()) {
    domain().throw_if_failed();
    domain().move();
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(50us);
  }
  if (called_.number < group_.options().checked_calls && !std::exchange(compared_, true))
    group_.compare_letters(lane_, called_, tag_);
  return true;
}

void NcclGroup::Message::at_end() {
  if (host_.defined()) host_.copy_from(tensor_);
  tensor_ = host_ = Tensor();
}

NcclGroup::Lane& NcclGroup::lane(int peer, bool outgoing) {
  auto& lane = lanes_[{peer, outgoing}];
  if (lane) return *lane;
  lane = std::make_unique<Lane>();
  lane->peer = peer;
  lane->outgoing = outgoing;
  const int from = outgoing ? rank() : peer, to = outgoing ? peer : rank();
  lane->channel = std::make_shared<Channel>(domain_->api(), domain_->version(), device(),
                                            fmt::format("{} {} to {}", name(), job_rank(from), job_rank(to)));
  const std::lock_guard lock(watched_->mutex);
  watched_->channels.push_back(lane->channel);
  return *lane;
}

Work NcclGroup::start(const Collective& call, const CommAction& action) {
  domain_->throw_if_failed();
  advance_messages();
  let_go_of_ended();
  const bool outgoing = call.op == CommOp::send;
  const Tensor& given = outgoing ? *call.input : *call.output;
  Lane& to = lane(call.root, outgoing);
  Called called{
      .number = to.messages++,
      .what = descriptor_of(call, to.messages, static_cast<std::uint64_t>(given.numel()), given.dtype(), action),
      .label = action.label,
      .peer = job_rank(call.root),
      .flight = call.flight};
  begin(called);
  Tensor tensor = given;
  if (given.device() == nullptr) {
    tensor = Tensor::empty(given.shape(), given.dtype(), staging_);
    if (outgoing) tensor.copy_from(given);
  }
  const bool back = given.device() == nullptr && !outgoing;
  if (called.number < options().checked_calls) {
    domain_->store().set(letter_key(to, called.number, outgoing),
                         fmt::format("{} x {} tag {}", name_of(given.dtype()), given.numel(), call.tag));
  }
  auto message = std::make_shared<Message>(*this, to, called, std::move(tensor), back ? given : Tensor(), call.tag);
  held_.push_back(message);
  to.waiting.push_back(message);
  ++waiting_messages_;
  advance(to);
  return Work(std::move(message));
}

void NcclGroup::advance_messages() {
  if (waiting_messages_ == 0) return;
  domain_->throw_if_failed();
  for (auto& [ends, lane] : lanes_) {
    if (!lane->waiting.empty()) advance(*lane);
  }
}

// What it waits for moves other messages on; those of this lane would overtake each other.
void NcclGroup::advance(Lane& lane) {
  if (std::exchange(lane.advancing, true)) return;
  const struct Over {
    bool& advancing;
    ~Over() { advancing = false; }
  } over{lane.advancing};
  if (lane.state != Lane::State::ready) meet(lane);
  while (lane.state == Lane::State::ready && !lane.waiting.empty()) {
    const auto message = lane.waiting.front();
    lane.waiting.pop_front();
    --waiting_messages_;
    const auto& api = domain_->api();
    const Tensor& tensor = message->tensor_;
    const auto count = static_cast<std::size_t>(tensor.numel());
    const auto stream = lane.channel->stream->handle();
    const int other = lane.outgoing ? 1 : 0;
    lane.channel->stream->wait(message->before_);
    message->started(put(*lane.channel, message->called_, [&](Comm comm) {
      return lane.outgoing ? api.send(tensor.device_raw(), count, nccl_type(tensor.dtype()), other, comm, stream)
                           : api.recv(tensor.device_raw(), count, nccl_type(tensor.dtype()), other, comm, stream);
    }));
    message->on_stream_ = true;
  }
}

// The sender is rank 0 of the two and makes the id.
void NcclGroup::meet(Lane& lane) {
  Communicator& communicator = lane.channel->communicator;
  const int from = lane.outgoing ? rank() : lane.peer, to = lane.outgoing ? lane.peer : rank();
  const std::string key = fmt::format("{}lane/{}-{}", watched_->prefix, from, to);
  const auto give_up_late = [&] {
    const auto& first = *lane.waiting.front();
    if (Clock::now() >= first.limit_) {
      domain_->fail(fmt::format("group \"{}\": rank {} waited {} s for the other end of {}", name(), domain_->rank(),
                                std::chrono::duration<double>(options().timeout).count(), first.called_.text()));
    }
  };
  if (lane.state == Lane::State::alone) {
    UniqueId id{};
    if (lane.outgoing) {
      if (const Result made = domain_->api().get_unique_id(&id); is_error(made))
        domain_->fail(fmt::format("group \"{}\": ncclGetUniqueId: {}", name(), communicator.text_of(made)));
      domain_->store().set(key, {id.bytes, sizeof id.bytes});
    } else {
      if (Clock::now() < lane.next_look) return;
      lane.next_look = Clock::now() + 2ms;
      if (const std::vector<std::string> keys{key}; !domain_->store().check(keys)) return give_up_late();
      const std::string text = domain_->store().get(key, 1s);
      std::memcpy(id.bytes, text.data(), std::min(text.size(), sizeof id.bytes));
    }
    lane.state = Lane::State::meeting;
    communicator.init(id, 2, lane.outgoing ? 0 : 1);
  }
  const Result state = communicator.state();
  if (state == success) {
    lane.state = Lane::State::ready;
  } else if (state == in_progress) {
    give_up_late();
  } else {
    domain_->fail(fmt::format("group \"{}\": NCCL did not connect ranks {} and {}: {}", name(), job_rank(from),
                              job_rank(to), communicator.text_of(state)));
  }
}

std::string NcclGroup::letter_key(const Lane& lane, std::uint64_t number, bool outgoing) const {
  const int from = lane.outgoing ? rank() : lane.peer, to = lane.outgoing ? lane.peer : rank();
  return fmt::format("{}letter/{}-{}/{}/{}", watched_->prefix, from, to, number, outgoing ? "sent" : "expected");
}

// While the data moves or waits to: what does not fit would never end.
void NcclGroup::compare_letters(const Lane& lane, const Called& called, std::uint32_t tag) {
  const std::string mine =
      fmt::format("{} x {} tag {}", name_of(static_cast<DType>(called.what.dtype)), called.what.count, tag);
  const std::string theirs = domain_->await_key(
      letter_key(lane, called.number, !lane.outgoing), Deadline::after(options().timeout),
      fmt::format("group \"{}\": rank {} waited for the other end of {}", name(), domain_->rank(), called.text()));
  if (mine == theirs) return;
  const int from = lane.outgoing ? rank() : lane.peer, to = lane.outgoing ? lane.peer : rank();
  domain_->fail(fmt::format("group \"{}\": message {} from rank {} to rank {}: sent {}, expected {}", name(),
                            called.number, job_rank(from), job_rank(to), lane.outgoing ? mine : theirs,
                            lane.outgoing ? theirs : mine));
}

}  // namespace dtrun::runtime::nccl
