#include "worker_runtime/device/fake/state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace dtrun::runtime::fake {

FakeCuda::FakeCuda(const FakeCudaConfig& given)
    : config(given),
      scheduler(given, {.open =
                            [this] {
                              for (auto& device : devices) device.memory->open();
                            },
                        .close =
                            [this] {
                              for (auto& device : devices) device.memory->close();
                            },
                        .failed =
                            [this](const FakeStream& stream, const std::string& operation, const std::string& why) {
                              end(stream.device, kLaunchFailure,
                                  fmt::format("{} of {}: {}", operation, describe(stream), why));
                            }}) {
  for (int i = 0; i < config.devices; ++i) {
    auto& device = devices.emplace_back();
    device.memory = std::make_unique<GuardedMemory>(config.memory_bytes, config.protection_keys);
  }
  for (int i = 0; i < config.devices; ++i) {
    devices[static_cast<std::size_t>(i)].own_stream = scheduler.add(i, participants_++, true);
  }
}

HostThread& FakeCuda::host() {
  const auto [at, added] = hosts_.try_emplace(std::this_thread::get_id());
  if (added) {
    // Whoever started this thread may have waited for something.
    at->second.participant = participants_++;
    for (const auto& [id, other] : hosts_) at->second.clock.join(other.clock);
  }
  return at->second;
}

std::shared_ptr<FakeStream> FakeCuda::new_stream(int device) { return scheduler.add(device, participants_++, false); }

std::shared_ptr<FakeStream> FakeCuda::stream_of(cuda::StreamHandle handle) {
  return handle == nullptr ? devices[static_cast<std::size_t>(current_device())].own_stream : scheduler.find(handle);
}

FakeEvent* FakeCuda::event_of(cuda::EventHandle handle) const {
  const auto at = events.find(handle);
  return at == events.end() ? nullptr : at->second.get();
}

GuardedMemory* FakeCuda::memory_of(const void* data) {
  for (auto& device : devices) {
    if (device.memory->owns(data)) return device.memory.get();
  }
  return nullptr;
}

const Pinned* FakeCuda::pinned_at(const void* data) const {
  const auto* const byte = static_cast<const std::byte*>(data);
  const auto after = pinned.upper_bound(byte);
  if (after == pinned.begin()) return nullptr;
  const Pinned& block = *std::prev(after)->second;
  return byte < block.data() + block.bytes() ? &block : nullptr;
}

bool FakeCuda::is_live(const void* data, std::size_t bytes, int device) {
  const auto* const byte = static_cast<const std::byte*>(data);
  if (const auto* const memory = memory_of(data)) {
    if (device >= 0 && memory != devices[static_cast<std::size_t>(device)].memory.get()) return false;
    const auto block = memory->block_before(byte);
    return block != memory->blocks().end() && byte + bytes <= block->first + block->second.bytes;
  }
  const auto* const block = pinned_at(data);
  return block != nullptr && byte + bytes <= block->data() + block->bytes();
}

cuda::Result FakeCuda::enqueue(Lock& lock, FakeStream& stream, Operation operation,
                               std::span<const cuda::Access> accesses) {
  const auto& fatal = devices[static_cast<std::size_t>(stream.device)].fatal;
  if (fatal != cuda::kSuccess) {
    if (operation.records) operation.records->done = true;
    return fatal;
  }
  stream.clock.join(host().clock);
  if (operation.waits_for) stream.clock.join(operation.waits_for->clock);
  const Moment moment = stream.clock.tick(stream.participant);
  if (operation.records) operation.records->clock = stream.clock;
  ++operations_;
  std::shared_ptr<const Label> label;
  for (const cuda::Access& access : accesses) {
    if (access.bytes == 0) continue;
    if (!label)
      label = std::make_shared<Label>(
          Label{fmt::format("{} (operation {})", operation.name, operations_), describe(stream)});
    const auto begin = reinterpret_cast<std::uintptr_t>(access.data);
    if (!is_live(access.data, access.bytes, stream.device)) {
      end(stream.device, kIllegalAddress,
          fmt::format("{} of {} {} {}, which no block of device {} holds", label->operation, label->participant,
                      access.writes ? "writes" : "reads", describe(begin, begin + access.bytes), stream.device));
      return kIllegalAddress;
    }
    if (!config.check_races) continue;
    const auto conflict = touched_.touch(begin, begin + access.bytes, access.writes, {moment, label}, stream.clock);
    if (!conflict) continue;
    report(*conflict, *label, access.writes);
    end(stream.device, kLaunchFailure, reports.back());
    return kLaunchFailure;
  }
  scheduler.push(lock, stream, std::move(operation));
  return fatal;
}

cuda::Result FakeCuda::synchronize(Lock& lock, const std::shared_ptr<FakeStream>& stream) {
  const VectorClock known = stream->clock;
  scheduler.run(lock, stream.get(), [&, goal = stream->given] { return stream->finished >= goal; });
  host().clock.join(known);
  return devices[static_cast<std::size_t>(stream->device)].fatal;
}

cuda::Result FakeCuda::synchronize(Lock& lock, int index) {
  auto& device = devices[static_cast<std::size_t>(index)];
  VectorClock known = device.departed;
  std::vector<std::pair<std::shared_ptr<FakeStream>, std::uint64_t>> goals;
  for (const auto* list : {&scheduler.streams(), &scheduler.departed()}) {
    for (const auto& stream : *list) {
      if (stream->device != index) continue;
      known.join(stream->clock);
      goals.emplace_back(stream, stream->given);
    }
  }
  scheduler.run(lock, nullptr, [&] {
    return std::ranges::all_of(goals, [](const auto& goal) { return goal.first->finished >= goal.second; });
  });
  host().clock.join(known);
  return device.fatal;
}

bool FakeCuda::host_touches(const void* data, std::size_t bytes, bool writes) {
  HostThread& thread = host();
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const Touch touch{thread.clock.tick(thread.participant),
                    std::make_shared<Label>(Label{"an access", "a thread of the host"})};
  const auto conflict = touched_.touch(begin, begin + bytes, writes, touch, thread.clock);
  if (conflict) report(*conflict, *touch.label, writes);
  return !conflict;
}

cuda::Result FakeCuda::forget(const void* data, std::size_t bytes, int device) {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  const auto conflict =
      config.strict_free ? touched_.unknown(begin, begin + bytes, host().clock) : std::optional<Conflict>{};
  touched_.forget(begin, begin + bytes);
  if (!conflict) return cuda::kSuccess;
  report(*conflict, {"giving back", "a thread of the host"}, true);
  end(device, kLaunchFailure, reports.back());
  return kLaunchFailure;
}

void FakeCuda::end(int index, cuda::Result result, std::string why) {
  auto& device = devices[static_cast<std::size_t>(index)];
  if (device.fatal != cuda::kSuccess) return;
  device.fatal = result;
  texts_.try_emplace(result, std::move(why));
  scheduler.stop(index);
}

std::string FakeCuda::text_of(cuda::Result result) const {
  const auto at = texts_.find(result);
  return at == texts_.end() ? std::string() : at->second;
}

std::optional<cuda::Result> FakeCuda::scripted_error(Member member) {
  auto& all = scripted[static_cast<std::size_t>(member)];
  std::optional<cuda::Result> result;
  for (auto& [calls, error] : all) {
    if (--calls == 0) result = error;
  }
  std::erase_if(all, [](const auto& one) { return one.first <= 0; });
  return result;
}

std::string FakeCuda::describe(const FakeStream& stream) const {
  return stream.name.empty() ? fmt::format("stream {}", stream.number)
                             : fmt::format("stream {} \"{}\"", stream.number, stream.name);
}

// "bytes 256..512 of block 7 (1024 bytes, device 0)"
std::string FakeCuda::describe(std::uintptr_t begin, std::uintptr_t end) const {
  const auto* const data = reinterpret_cast<const std::byte*>(begin);
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const auto& memory = *devices[i].memory;
    if (!memory.owns(data)) continue;
    const auto block = memory.block_before(data);
    if (block == memory.blocks().end()) break;
    const auto offset = begin - reinterpret_cast<std::uintptr_t>(block->first);
    return fmt::format("bytes {}..{} of block {} ({} bytes, device {})", offset, offset + (end - begin),
                       block->second.number, block->second.bytes, i);
  }
  const auto* const block = pinned_at(data);
  if (block == nullptr) return fmt::format("{} bytes at {:#x}", end - begin, begin);
  return fmt::format("bytes {}..{} of pinned memory ({} bytes)", data - block->data(),
                     data - block->data() + static_cast<std::ptrdiff_t>(end - begin), block->bytes());
}

void FakeCuda::report(const Conflict& conflict, const Label& later, bool later_writes) {
  reports.push_back(fmt::format(
      "race: {0} of {1} {2} {3}, which {4} of {5} {6}, and nothing orders the two: {1} must wait for an event recorded "
      "on {5} behind that",
      later.operation, later.participant, later_writes ? "writes" : "reads", describe(conflict.begin, conflict.end),
      conflict.earlier->operation, conflict.earlier->participant, conflict.earlier_writes ? "writes" : "reads"));
}

std::vector<std::string> FakeCuda::left() const {
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    for (const auto& [data, block] : devices[i].memory->blocks())
      lines.push_back(fmt::format("device {}: block {} of {} bytes", i, block.number, block.bytes));
  }
  for (const auto& [data, block] : pinned) lines.push_back(fmt::format("pinned memory of {} bytes", block->bytes()));
  for (const auto& stream : scheduler.streams()) {
    if (stream->number != 0) lines.push_back(fmt::format("device {}: {}", stream->device, describe(*stream)));
  }
  for (const auto& [handle, event] : events) lines.push_back(fmt::format("device {}: an event", event->device));
  return lines;
}

}  // namespace dtrun::runtime::fake
