// Tells which workers have ended, in the order in which they did.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include <functional>
#include <vector>

namespace dtrun::launcher {

// One epoll set over all pidfds behind one Asio descriptor: the kernel's ready list keeps the order of the deaths,
// which names the culprit, and 256 workers cost one descriptor more, not 256. Owner: the agent, its thread. Throws
// SystemError.
class ExitWatcher {
 public:
  explicit ExitWatcher(boost::asio::io_context& io);

  // `pidfd` stays the caller's; remove it before it is closed. `index` is what the callback gets.
  void add(int pidfd, int index);
  void remove(int pidfd) noexcept;
  // Calls `ended` with the indices whose processes ended, again and again until stop().
  void start(std::function<void(const std::vector<int>&)> ended);
  void stop() noexcept;

 private:
  void wait();

  boost::asio::posix::stream_descriptor set_;
  std::function<void(const std::vector<int>&)> ended_;
};

}  // namespace dtrun::launcher
