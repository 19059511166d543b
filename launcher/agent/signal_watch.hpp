// The signals that reach the agent, through its event loop.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include <functional>

#include "launcher/config/launch_config.hpp"

namespace dtrun::launcher {

// SIGCHLD, SIGUSR1, SIGUSR2 and the signals that stop a job; one that was ignored when we started (SIGHUP under nohup)
// stays ignored. Owner: the agent, its thread. Throws SystemError.
class SignalWatch {
 public:
  SignalWatch(boost::asio::io_context& io, const StopOptions& options);
  // Calls `came` with each signal's number, again and again.
  void start(std::function<void(int)> came);
  bool stops_the_job(int number) const;

 private:
  void wait();

  const StopOptions& options_;
  boost::asio::posix::stream_descriptor signals_;
  std::function<void(int)> came_;
};

}  // namespace dtrun::launcher
