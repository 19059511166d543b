// The thread of a Domain.
#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "rendezvous/base/error.hpp"
#include "rendezvous/store/store.hpp"
#include "worker_runtime/comm/nccl/bounded.hpp"
#include "worker_runtime/comm/nccl/domain.hpp"
#include "worker_runtime/comm/nccl/errors.hpp"
#include "worker_runtime/device/error.hpp"

namespace dtrun::runtime::nccl {

namespace {

using namespace std::chrono_literals;
constexpr auto kTick = 5ms;
constexpr auto kStoreTick = 100ms;
constexpr auto kCollect = 250ms;  // how long the others' progress is waited for

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

std::string abort_key(const std::string& prefix) { return prefix + "abort"; }
std::string progress_key(const std::string& prefix, int rank) { return fmt::format("{}progress/{}", prefix, rank); }

// One line of a rank's progress: "prefix of the group TAB number TAB text".
struct ProgressLine {
  std::uint64_t begun = 0;
  std::string text;
};

std::optional<ProgressLine> find_line(const std::string& progress, const std::string& group) {
  std::istringstream in(progress);
  for (std::string line; std::getline(in, line);) {
    const auto first = line.find('\t'), second = line.find('\t', first + 1);
    if (second == std::string::npos || line.compare(0, first, group) != 0) continue;
    return ProgressLine{std::strtoull(line.c_str() + first + 1, nullptr, 10), line.substr(second + 1)};
  }
  return std::nullopt;
}

}  // namespace

void Domain::watch() {
  device_.cuda().set_device(device_.index());
  auto next_store = Clock::now() + kStoreTick;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    changed_.wait_for(lock, kTick, [this] { return stopping_ || found_; });
    if (stopping_) return;
    auto finding = found_;
    lock.unlock();
    for (const auto& group : groups()) {
      if (!finding) finding = look(group);
    }
    if (!finding && Clock::now() >= next_store) {
      finding = look_at_store();
      next_store = Clock::now() + kStoreTick;
    }
    if (finding) return end(*finding);
    lock.lock();
  }
}

std::optional<Domain::Finding> Domain::look(const std::shared_ptr<Watched>& group) {
  std::vector<std::shared_ptr<Channel>> channels;
  {
    const std::lock_guard lock(group->mutex);
    channels = group->channels;
  }
  for (const auto& channel : channels) {
    try {
      channel->prune();
    } catch (const DeviceError&) {
      continue;  // whoever waits for the device reports it
    }
    const auto oldest = channel->oldest();
    if (const Result state = channel->communicator.state(); is_error(state)) {
      return Finding{
          .text = fmt::format("group \"{}\": NCCL failed on rank {} in {}: {}", group->name, rank_,
                              oldest ? oldest->call.text() : "no operation", channel->communicator.text_of(state)),
          .group = group,
          .number = oldest ? oldest->call.number : 0,
          .peer = oldest ? oldest->call.peer : -1};
    }
    if (oldest && Clock::now() >= oldest->limit) {
      return Finding{.text = fmt::format("group \"{}\": rank {} waited {} s in {}", group->name, rank_,
                                         seconds(group->timeout), oldest->call.text()),
                     .group = group,
                     .number = oldest->call.number,
                     .peer = oldest->call.peer};
    }
  }
  return std::nullopt;
}

std::optional<Domain::Finding> Domain::look_at_store() {
  if (!store_works_) return std::nullopt;
  try {
    const std::vector<std::string> keys{abort_key(prefix_)};
    if (!store_->check(keys)) return std::nullopt;
    return Finding{.text = store_->get(keys[0], 1s), .from_elsewhere = true};
  } catch (const Error&) {  // the job ends by other means when its store is gone
    store_works_ = false;
    return std::nullopt;
  }
}

// Progress is told before communicators go: what is under way is known until then.
void Domain::end(Finding finding) {
  publish_progress({});
  std::string text = finding.text;
  if (finding.from_elsewhere) {
    for (const auto& group : groups()) {
      const std::lock_guard lock(group->mutex);
      for (const auto& channel : group->channels) {
        if (const auto oldest = channel->oldest())
          text += fmt::format("\n  rank {} was in {} of group \"{}\"", rank_, oldest->call.text(), group->name);
      }
    }
  } else if (store_works_) {
    try {
      store_->set(abort_key(prefix_), finding.text);
    } catch (const Error&) {
      store_works_ = false;
    }
  }
  failing_.store(true, std::memory_order_release);
  const Deadline limit = Deadline::after(abort_limit_);
  std::vector<std::shared_ptr<Channel>> channels;
  for (const auto& group : groups()) {
    const std::lock_guard lock(group->mutex);
    channels.insert(channels.end(), group->channels.begin(), group->channels.end());
  }
  BoundedCall abort([channels, &device = device_] {
    device.cuda().set_device(device.index());
    for (const auto& channel : channels) channel->communicator.abort();
  });
  if (finding.group) text += progress_of_others(finding);
  if (!abort.wait(limit)) {
    device_.mark_lost();
    text += fmt::format("\n  ncclCommAbort did not end within {} s", seconds(abort_limit_));
  }
  const std::lock_guard lock(mutex_);
  error_ = text;
  failed_.store(true, std::memory_order_release);
  changed_.notify_all();
}

void Domain::publish_progress(std::string_view state) noexcept {
  if (!store_works_) return;
  try {
    std::string text(state);
    text += '\n';
    for (const auto& group : groups()) {
      const std::lock_guard lock(group->mutex);
      const std::uint64_t begun = group->begun.load(std::memory_order_relaxed);
      text += fmt::format("{}\t{}\t{}\n", group->prefix, begun,
                          group->last.what.sequence == 0 ? "no operation yet" : group->last.text());
    }
    store_->set(progress_key(prefix_, rank_), text);
  } catch (const std::exception&) {
    store_works_ = false;
  }
}

std::string Domain::progress_of_others(const Finding& finding) {
  std::string text;
  int same = 0;
  const Deadline deadline = Deadline::after(kCollect);
  for (const int other : finding.group->ranks) {
    if (other == rank_ || !store_works_ || (finding.peer >= 0 && other != finding.peer)) continue;
    std::string progress;
    try {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
      progress = store_->get(progress_key(prefix_, other), std::max<std::chrono::milliseconds>(left, 1ms));
    } catch (const TimeoutError&) {
      text += fmt::format("\n  rank {} does not answer", other);
      continue;
    } catch (const Error&) {
      store_works_ = false;
      continue;
    }
    const auto line = find_line(progress, finding.group->prefix);
    if (progress.starts_with("left")) {
      text += fmt::format("\n  rank {} left the group", other);
    } else if (!line || finding.peer >= 0 || line->begun < finding.number) {
      text += fmt::format("\n  rank {}, its last operation: {}", other, line ? line->text : "none in this group");
    } else {
      ++same;
    }
  }
  if (text.empty() && same > 0) return "; all ranks have begun it";
  return text.empty() ? text : (finding.peer < 0 ? "; missing:" : "; at the other end:") + text;
}

}  // namespace dtrun::runtime::nccl
