#include "worker_runtime/comm/nccl/nccl_group.hpp"

#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <thread>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/comm/nccl/errors.hpp"
#include "worker_runtime/comm/nccl/lane.hpp"
#include "worker_runtime/comm/staged_calls.hpp"

namespace dtrun::runtime::nccl {

namespace {

GroupOptions without_thread(GroupOptions options) {
  options.comm_thread = false;
  return options;
}

MemoryAccount& no_account() {
  static MemoryAccount account;
  return account;
}

std::shared_ptr<Channel> make_channel(Domain& domain, Watched& watched, std::string_view purpose) {
  auto channel = std::make_shared<Channel>(domain.api(), domain.version(), domain.device(),
                                           fmt::format("{} {}", watched.name, purpose));
  const std::lock_guard lock(watched.mutex);
  watched.channels.push_back(channel);
  return channel;
}

bool gathers(CommOp op) { return !reduces(op); }

}  // namespace

NcclGroup::NcclGroup(std::shared_ptr<Domain> domain, std::shared_ptr<Watched> watched, int rank,
                     GroupOptions group_options)
    : ProcessGroup(rank, static_cast<int>(watched->ranks.size()), without_thread(std::move(group_options))),
      domain_(std::move(domain)),
      watched_(std::move(watched)),
      gather_(make_channel(*domain_, *watched_, "gather")),
      reduce_(make_channel(*domain_, *watched_, "reduce")),
      memory_(std::make_shared<NcclMemory>(domain_->api(), domain_->device(),
                                           std::vector<std::shared_ptr<Channel>>{gather_, reduce_})),
      staging_(MemoryTag::comm, no_account(), &domain_->device()),
      check_(domain_->device().add_check([this] { advance_messages(); })),
      mover_(domain_->add_mover([this] { advance_messages(); })),
      exceptions_(std::uncaught_exceptions()) {
  domain_->add(watched_);
}

NcclGroup::~NcclGroup() {
  check_.reset();
  mover_.reset();
  const bool unwinding = std::uncaught_exceptions() > exceptions_;
  if (unwinding && !domain_->failed()) {
    domain_->give_up(fmt::format("group \"{}\": rank {} left by an error of its own", name(), domain_->rank()));
  }
  const bool drained = !unwinding && drain();
  if (drained) memory_->deregister_all();
  domain_->close(watched_->channels, drained);
  if (!drained) memory_->deregister_all();
  domain_->remove(*watched_);
  for (const auto& channel : watched_->channels) channel->stream.reset();
}

// Whether everything that this rank called has ended.
bool NcclGroup::drain() noexcept {
  const Deadline deadline = Deadline::after(domain_->abort_limit() / 2);
  try {
    while (!domain_->failed() && !deadline.passed()) {
      domain_->move();
      advance_messages();
      let_go_of_ended();
      if (held_.empty()) return true;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  } catch (const std::exception&) {  // whoever waits for the device reports it
  }
  return false;
}

Tensor NcclGroup::allocate(const Shape& shape, DType dtype, MemoryTag tag) {
  auto& arena = arenas_[static_cast<std::size_t>(tag)];
  if (!arena) arena.emplace(tag, options().account != nullptr ? *options().account : no_account(), device(), memory_);
  return Tensor::empty(shape, dtype, *arena);
}

void NcclGroup::begin(const Called& called) {
  const std::lock_guard lock(watched_->mutex);
  watched_->last = called;
  if (called.peer < 0) watched_->begun.store(called.number, std::memory_order_relaxed);
}

Work NcclGroup::start_all(std::span<const Collective> calls, const CommAction& action) {
  domain_->throw_if_failed();
  if (calls.empty()) return Work();
  advance_messages();
  let_go_of_ended();
  Called called{.number = ++sequence_, .label = action.label, .more = calls.size() - 1, .flight = calls[0].flight};
  const Tensor* part = part_of(calls[0]);
  called.what = descriptor_of(calls[0], sequence_, part == nullptr ? 0 : static_cast<std::uint64_t>(part->numel()),
                              part == nullptr ? DType::u8 : part->dtype(), action);
  begin(called);
  if (sequence_ <= options().checked_calls) compare(calls, called, action);
  Channel& channel = gathers(calls[0].op) ? *gather_ : *reduce_;
  if (calls[0].op == CommOp::barrier) {
    if (!token_.defined()) token_ = Tensor::zeros({1}, DType::i32, staging_);
    const Collective sum{.op = CommOp::all_reduce, .input = &token_, .output = &token_};
    return issue(channel, called, {&sum, 1}, true);
  }
  if (StagedCalls::needed(calls)) {
    run_staged(calls, called);
    return Work();
  }
  return issue(channel, called, calls, false);
}

Work NcclGroup::issue(Channel& channel, const Called& called, std::span<const Collective> calls, bool blocks) {
  std::vector<Tensor> tensors;
  for (const Collective& call : calls) {
    if (call.input != nullptr) tensors.push_back(*call.input);
    if (call.output != nullptr && call.output != call.input) tensors.push_back(*call.output);
  }
  auto work = std::make_shared<StreamWork>(domain_, std::move(tensors), blocks);
  held_.push_back(work);  // before anything runs: tensors must not go while it may
  const auto stream = channel.stream->handle();
  channel.stream->wait(device().current().record());
  for (const Collective& call : calls) copy_own_part(call, *channel.stream);
  try {
    work->started(put(channel, called, [&](Comm comm) {
      for (const Collective& call : calls) {
        if (const Result result = call_nccl(call, comm, stream); is_error(result)) return result;
      }
      return success;
    }));
  } catch (const UsageError&) {  // nothing runs
    channel.stream->synchronize();
    held_.pop_back();
    throw;
  }
  return Work(std::move(work));
}

Event NcclGroup::put(Channel& channel, const Called& called, const std::function<Result(Comm)>& calls) {
  const Deadline deadline = Deadline::after(options().timeout);
  const Result result = channel.communicator.call_together(calls);
  if (is_error(result)) {
    const std::string text = fmt::format("group \"{}\": NCCL refused {} on rank {}: {}", name(), called.text(),
                                         domain_->rank(), channel.communicator.text_of(result));
    domain_->throw_if_failed();  // the watchdog may have closed the communicator
    if (nothing_happened(result)) throw UsageError("comm", text);
    domain_->fail(text);
  }
  // What is not launched yet is not on the stream either.
  if (result == in_progress) await_ready(channel.communicator, deadline, called.text());
  Event end = channel.stream->record();
  channel.push({called, end, Clock::now() + options().timeout, options().flight});
  return end;
}

// One question at most: they are in the order of the calls, and nearly so in that of their ends.
void NcclGroup::let_go_of_ended() {
  while (!held_.empty() && (held_.front()->over() || held_.front()->end_if_done())) held_.pop_front();
}

}  // namespace dtrun::runtime::nccl
