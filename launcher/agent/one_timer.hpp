// A timer of which only the last arming counts.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <algorithm>
#include <chrono>
#include <functional>

#include "rendezvous/base/clock.hpp"

namespace dtrun::launcher {

// Calls back once, unless it was armed again or cancelled before; a call that is already on its way is dropped then.
// Owner: the agent, its thread.
class OneTimer {
 public:
  explicit OneTimer(boost::asio::io_context& io) : timer_(io) {}

  void arm(std::chrono::duration<double> delay, std::function<void()> over) {
    // A day is as good as for ever, and fits the clock.
    timer_.expires_after(std::chrono::duration_cast<Clock::duration>(std::min(delay, kMost)));
    timer_.async_wait([this, over = std::move(over), number = ++number_](const boost::system::error_code& error) {
      if (!error && number == number_) over();
    });
  }
  void cancel() {
    timer_.cancel();
    ++number_;
  }

 private:
  static constexpr std::chrono::duration<double> kMost{86400.0};
  boost::asio::steady_timer timer_;
  unsigned number_ = 0;
};

}  // namespace dtrun::launcher
