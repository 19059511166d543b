#include "worker_runtime/worker/stop_signals.hpp"

#include <atomic>

namespace dtrun::runtime {
namespace {

std::atomic<bool> stop_asked{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void ask(int) { stop_asked.store(true, std::memory_order_relaxed); }

}  // namespace

StopSignals::StopSignals() {
  stop_asked = false;
  struct sigaction action {};
  action.sa_handler = ask;
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGTERM, &action, &old_term_);
  ::sigaction(SIGINT, &action, &old_int_);
}

StopSignals::~StopSignals() {
  ::sigaction(SIGTERM, &old_term_, nullptr);
  ::sigaction(SIGINT, &old_int_, nullptr);
}

bool StopSignals::asked() const noexcept { return came(); }

bool StopSignals::came() noexcept { return stop_asked.load(std::memory_order_relaxed); }

}  // namespace dtrun::runtime
