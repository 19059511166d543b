#include "worker_runtime/device/stopwatch.hpp"

#include <utility>
#include <vector>

#include "worker_runtime/device/device.hpp"

namespace dtrun::runtime {

class Stopwatch::OnDevice {
 public:
  explicit OnDevice(Device& device) : device_(device) {}
  void start() { start_ = device_.current().record(true); }
  void stop(Clock::duration& time) { measured_.push_back({start_, device_.current().record(true), &time}); }
  void collect() {
    for (const auto& part : std::exchange(measured_, {})) *part.time += part.end.since(part.start);
  }
  void reset() { measured_.clear(); }

 private:
  struct Part {
    Event start, end;
    Clock::duration* time;
  };
  Device& device_;
  Event start_;
  std::vector<Part> measured_;
};

Stopwatch::Stopwatch(Device* device) {
  if (device != nullptr) on_device_ = std::make_unique<OnDevice>(*device);
}
Stopwatch::~Stopwatch() = default;

void Stopwatch::start() {
  if (on_device_) return on_device_->start();
  started_ = Clock::now();
}

void Stopwatch::stop(Clock::duration& time) {
  if (on_device_) return on_device_->stop(time);
  time += Clock::now() - started_;
}

void Stopwatch::collect() {
  if (on_device_) on_device_->collect();
}

void Stopwatch::reset() {
  if (on_device_) on_device_->reset();
}

}  // namespace dtrun::runtime
