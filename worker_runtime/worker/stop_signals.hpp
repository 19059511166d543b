// SIGTERM and SIGINT as a wish to stop after the current step.
#pragma once

#include <csignal>

namespace dtrun::runtime {

// While one lives, the first signal only sets a flag, and a second one ends the process as usual. One per process.
class StopSignals {
 public:
  StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  ~StopSignals();
  bool asked() const noexcept;
  // The same, also after it is gone: whoever stops the ranks has told this one.
  static bool came() noexcept;

 private:
  struct sigaction old_term_ {};
  struct sigaction old_int_ {};
};

}  // namespace dtrun::runtime
