// Channel: a communicator with its stream, and the operations that are under way there.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "rendezvous/base/clock.hpp"
#include "rendezvous/contract/flight_record.hpp"
#include "worker_runtime/comm/descriptor.hpp"
#include "worker_runtime/comm/nccl/communicator.hpp"
#include "worker_runtime/device/device.hpp"

namespace dtrun::runtime::nccl {

// What a rank called, as messages name it.
struct Called {
  std::uint64_t number = 0;  // of the collectives of a group; of a message: of those from one rank to another, from 0
  Descriptor what{};
  std::array<char, 48> label{};
  std::size_t more = 0;      // operations that were called together with it
  int peer = -1;             // of a message: the rank of the job at the other end
  std::uint64_t flight = 0;  // of the first one, in the flight record; the others follow
  // "number 7: all_reduce sum f32 x 100 (step 3, REDUCE h.1)", "send to rank 1 (message 0: f32 x 10)".
  std::string text() const;
};

// As the watchdog sees it.
struct Operation {
  Called call;
  Event end;
  Clock::time_point limit;
  FlightRecorder* flight = nullptr;  // where its end is noted
};

// Owned by a group, which is what gives work to it; the watchdog looks at the operations and asks the communicator. The
// stream belongs to the group's thread.
class Channel {
 public:
  Channel(const NcclApi& api, int version, Device& device, const std::string& name)
      : communicator(api, version, name), stream(std::make_unique<Stream>(device, name, kPriority)) {}

  static constexpr int kPriority = -1;  // before the kernels of forward and backward
  Communicator communicator;
  std::unique_ptr<Stream> stream;

  void push(Operation operation);
  std::optional<Operation> oldest() const;
  // Forgets the operations that have ended, and notes it; asks the device without holding a lock. Throws DeviceError.
  void prune();

 private:
  mutable std::mutex mutex_;
  std::deque<Operation> operations_;
};

}  // namespace dtrun::runtime::nccl
