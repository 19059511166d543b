#include <chrono>
#include <utility>

#include "worker_runtime/device/fake/calls.hpp"

namespace dtrun::runtime::fake::calls {
namespace {

// Whether the host finds the record done; then it knows what was before it.
bool found_done(FakeCuda& fake, const Record& record) {
  if (record.done) fake.host().clock.join(record.clock);
  return record.done;
}

}  // namespace

Result stream_create(StreamHandle* stream, int /*priority*/) {
  return call(Member::stream_create, [&](FakeCuda& fake, Lock&) {
    if (fake.devices.empty()) return cuda::kNoDevice;
    *stream = fake.new_stream(current_device()).get();
    return cuda::kSuccess;
  });
}

// What is on it still runs.
Result stream_destroy(StreamHandle handle) {
  return call(
      Member::stream_destroy,
      [&](FakeCuda& fake, Lock&) {
        const auto stream = fake.scheduler.find(handle);
        if (stream == nullptr || stream->number == 0) return kInvalidHandle;
        fake.devices[static_cast<std::size_t>(stream->device)].departed.join(stream->clock);
        fake.scheduler.remove(*stream);
        return cuda::kSuccess;
      },
      true);
}

Result stream_synchronize(StreamHandle handle) {
  return call(Member::stream_synchronize, [&](FakeCuda& fake, Lock& lock) {
    const auto stream = fake.stream_of(handle);
    return stream == nullptr ? kInvalidHandle : fake.synchronize(lock, stream);
  });
}

Result stream_query(StreamHandle handle) {
  return call(Member::stream_query, [&](FakeCuda& fake, Lock& lock) -> Result {
    const auto stream = fake.stream_of(handle);
    if (stream == nullptr) return kInvalidHandle;
    const VectorClock known = stream->clock;
    const auto done = [&, goal = stream->given] { return stream->finished >= goal; };
    fake.scheduler.run_some(lock, stream.get(), done);
    if (!done()) return cuda::kNotReady;
    fake.host().clock.join(known);
    return cuda::kSuccess;
  });
}

Result stream_wait_event(StreamHandle handle, EventHandle event_handle) {
  return call(Member::stream_wait_event, [&](FakeCuda& fake, Lock& lock) -> Result {
    const auto stream = fake.stream_of(handle);
    const FakeEvent* const event = fake.event_of(event_handle);
    if (stream == nullptr || event == nullptr) return kInvalidHandle;
    if (!event->record) return cuda::kSuccess;
    return fake.enqueue(lock, *stream, {.name = "wait", .run = {}, .waits_for = event->record, .records = {}}, {});
  });
}

void name_stream(StreamHandle handle, const char* name) {
  const Lock lock(mutex_of_process());
  if (const auto stream = current().scheduler.find(handle)) stream->name = name;
}

Result event_create(EventHandle* event, bool timing) {
  return call(Member::event_create, [&](FakeCuda& fake, Lock&) {
    if (fake.devices.empty()) return cuda::kNoDevice;
    auto made = std::make_unique<FakeEvent>(FakeEvent{current_device(), timing, nullptr});
    *event = made.get();
    fake.events.emplace(*event, std::move(made));
    return cuda::kSuccess;
  });
}

Result event_destroy(EventHandle handle) {
  return call(
      Member::event_destroy,
      [&](FakeCuda& fake, Lock&) { return fake.events.erase(handle) == 1 ? cuda::kSuccess : kInvalidHandle; }, true);
}

Result event_record(EventHandle handle, StreamHandle stream_handle) {
  return call(Member::event_record, [&](FakeCuda& fake, Lock& lock) -> Result {
    const auto stream = fake.stream_of(stream_handle);
    FakeEvent* const event = fake.event_of(handle);
    if (stream == nullptr || event == nullptr || event->device != stream->device) return kInvalidHandle;
    event->record = std::make_shared<Record>(Record{stream.get(), {}, false, {}});
    return fake.enqueue(lock, *stream, {.name = "record", .run = {}, .waits_for = {}, .records = event->record}, {});
  });
}

Result event_query(EventHandle handle) {
  return call(Member::event_query, [&](FakeCuda& fake, Lock& lock) -> Result {
    const FakeEvent* const event = fake.event_of(handle);
    if (event == nullptr) return kInvalidHandle;
    const auto record = event->record;
    if (!record || found_done(fake, *record)) return cuda::kSuccess;
    fake.scheduler.run_some(lock, record->stream, [&] { return record->done; });
    return found_done(fake, *record) ? cuda::kSuccess : cuda::kNotReady;
  });
}

Result event_elapsed_time(float* milliseconds, EventHandle start, EventHandle end) {
  return call(Member::event_elapsed_time, [&](FakeCuda& fake, Lock&) -> Result {
    const FakeEvent* const first = fake.event_of(start);
    const FakeEvent* const last = fake.event_of(end);
    if (first == nullptr || last == nullptr || !first->timing || !last->timing || !first->record || !last->record)
      return kInvalidHandle;
    if (!first->record->done || !last->record->done) return cuda::kNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(last->record->time - first->record->time).count();
    return cuda::kSuccess;
  });
}

}  // namespace dtrun::runtime::fake::calls
