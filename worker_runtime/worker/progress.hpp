// What rank 0 shows while training: a bar that redraws itself on a terminal, otherwise a line every few steps.
#pragma once

#include <cstdint>
#include <string>

#include "rendezvous/base/clock.hpp"

namespace dtrun::runtime {

struct ProgressPoint {
  std::int64_t done = 0;  // steps
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  double tokens_per_second = 0;
};

// "step  20/120  loss 3.2104  grad norm 0.91  lr 1.9e-03  12345 tokens/s  14 s left"
std::string progress_line(const ProgressPoint& point, std::int64_t total, Clock::duration elapsed);
// "[#####     ]  20/120  loss 3.2104  12345 tokens/s  14 s left"
std::string progress_bar(const ProgressPoint& point, std::int64_t total, Clock::duration elapsed);

// Writes to stdout. One thread.
class Progress {
 public:
  // `every`: steps between lines; 0: about twenty lines in all. `silent` for all ranks but the first.
  Progress(std::int64_t total, std::int64_t every, bool terminal, bool silent);
  void show(const ProgressPoint& point);
  // Ends the line of the bar.
  void finish();

 private:
  std::int64_t total_;
  std::int64_t every_;
  bool terminal_;
  bool silent_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_{};
};

}  // namespace dtrun::runtime
