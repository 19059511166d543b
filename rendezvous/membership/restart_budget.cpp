#include "rendezvous/membership/restart_budget.hpp"

#include <fmt/format.h>

#include "rendezvous/base/counted.hpp"

namespace dtrun::rendezvous {

NoRestart RestartBudget::left() const {
  const auto by_number = restarts < max_restarts ? NoRestart::none : NoRestart::used_up;
  if (!max_no_progress) return by_number;
  const bool reports = best_step >= 0;
  if (!reports && max_restarts > 0) return by_number;
  return without_progress < *max_no_progress ? NoRestart::none : NoRestart::no_progress;
}

void RestartBudget::progressed(std::int64_t step) {
  if (step <= best_step) return;
  best_step = step;
  without_progress = 0;
}

NoRestart RestartBudget::judge(std::int64_t step, bool out_of_memory) {
  progressed(step);
  // The same step needs the same memory: what failed there twice fails there again.
  const bool again = out_of_memory && step >= 0 && step <= memory_step;
  memory_step = out_of_memory ? step : -1;
  const auto result = left();
  return result == NoRestart::none && again ? NoRestart::out_of_memory_again : result;
}

std::string RestartBudget::text(NoRestart why) const {
  switch (why) {
    case NoRestart::no_progress:
      return best_step < 0
                 ? fmt::format("the limit is {} without progress", counted(without_progress, "restart"))
                 : fmt::format("{} got no further than step {}", counted(without_progress, "restart"), best_step);
    case NoRestart::out_of_memory_again:
      return fmt::format("out of memory at step {} again, it needs less memory or a higher limit", memory_step);
    case NoRestart::cannot_help:
      return "the worker says that another attempt cannot help";
    case NoRestart::none:
    case NoRestart::used_up:
      break;
  }
  return {};
}

}  // namespace dtrun::rendezvous
