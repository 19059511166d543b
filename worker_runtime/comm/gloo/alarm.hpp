// Alarm: a thread that interrupts waits of Gloo when their time is over. Gloo's own timeouts close every connection of
// a group; being interrupted costs nothing. Shared by the groups of one rank.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "rendezvous/base/clock.hpp"

namespace gloo::transport {
class UnboundBuffer;
}

namespace dtrun::runtime::gloo {

class Alarm {
 public:
  // While it lives, the wait of `buffer` for a send or receive is interrupted from `at` on, with the precision of a
  // tick. An interruption may come late and end the next wait of the same buffer at once.
  class Entry {
   public:
    Entry(Alarm& alarm, ::gloo::transport::UnboundBuffer& buffer, bool send, Deadline at);
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;
    ~Entry();

   private:
    friend class Alarm;
    Alarm& alarm_;
    ::gloo::transport::UnboundBuffer& buffer_;
    bool send_;
    Deadline at_;
  };

  Alarm();
  ~Alarm();

 private:
  static constexpr auto kTick = std::chrono::milliseconds(20);
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Entry*> entries_;  // one per waiting thread
  bool idle_ = false;            // sleeps until there is an entry
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace dtrun::runtime::gloo
