#include "worker_runtime/comm/nccl/channel.hpp"

#include <fmt/format.h>

#include <utility>

namespace dtrun::runtime::nccl {

std::string Called::text() const {
  if (peer < 0) {
    return fmt::format("number {}: {}{}", number, describe(what, label),
                       more == 0 ? std::string() : fmt::format(" and {} more", more));
  }
  return fmt::format("{} rank {} (message {}: {} x {}{}{})",
                     what.op == static_cast<std::uint8_t>(CommOp::send) ? "send to" : "recv from", peer, number,
                     name_of(static_cast<DType>(what.dtype)), what.count, label[0] == '\0' ? "" : ", ", label.data());
}

void Channel::push(Operation operation) {
  const std::lock_guard lock(mutex_);
  operations_.push_back(std::move(operation));
}

std::optional<Operation> Channel::oldest() const {
  const std::lock_guard lock(mutex_);
  if (operations_.empty()) return std::nullopt;
  return operations_.front();
}

void Channel::prune() {
  for (;;) {
    const auto first = oldest();
    if (!first || !first->end.done()) return;
    const std::lock_guard lock(mutex_);  // `first` keeps the event: it goes without the lock
    if (operations_.empty() || operations_.front().end.handle() != first->end.handle()) continue;
    operations_.pop_front();
    const auto& call = first->call;
    for (std::size_t i = 0; i <= call.more && call.flight != 0 && first->flight != nullptr; ++i)
      first->flight->finished(call.flight + i);
  }
}

}  // namespace dtrun::runtime::nccl
