// Stopwatch: how long parts of a thread's work take, on the host or on a device.
#pragma once

#include <memory>

#include "rendezvous/base/clock.hpp"

namespace dtrun::runtime {

class Device;

// One thread. On the host the times are those of the calls. On a device the calls return long before the work is done:
// there the times are those of the stream that is current at start() and stop(), its waits for other streams included,
// and they are added by collect().
class Stopwatch {
 public:
  explicit Stopwatch(Device* device);  // null: the host; outlives this
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch();
  void start();
  // Adds the time since start() to `time`, which lives until collect() or reset().
  void stop(Clock::duration& time);
  // When the device has done what was measured. Throws DeviceError.
  void collect();
  void reset();

 private:
  class OnDevice;
  std::unique_ptr<OnDevice> on_device_;
  Clock::time_point started_{};
};

}  // namespace dtrun::runtime
