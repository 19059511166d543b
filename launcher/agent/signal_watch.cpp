#include "launcher/agent/signal_watch.hpp"

#include <signal.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "rendezvous/base/signal_descriptor.hpp"
#include "rendezvous/base/unique_fd.hpp"

namespace dtrun::launcher {
namespace {

bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

UniqueFd open_signals(const StopOptions& options) {
  std::vector<int> numbers{SIGCHLD, SIGUSR1, SIGUSR2};
  for (const int number : options.signals) {
    if (number != SIGHUP || !is_ignored(SIGHUP)) numbers.push_back(number);  // nohup stays nohup
  }
  return open_signal_descriptor(numbers);
}

}  // namespace

SignalWatch::SignalWatch(boost::asio::io_context& io, const StopOptions& options)
    : options_(options), signals_(io, open_signals(options).release()) {}

void SignalWatch::start(std::function<void(int)> came) {
  came_ = std::move(came);
  wait();
}

bool SignalWatch::stops_the_job(int number) const {
  return std::find(options_.signals.begin(), options_.signals.end(), number) != options_.signals.end();
}

void SignalWatch::wait() {
  signals_.async_wait(boost::asio::posix::descriptor_base::wait_read, [this](const boost::system::error_code& error) {
    if (error) return;
    const int number = next_signal(signals_.native_handle());
    wait();
    if (number != 0) came_(number);
  });
}

}  // namespace dtrun::launcher
