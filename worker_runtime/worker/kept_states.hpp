// KeptStates: this rank's state of a few steps back, to return to when numbers are not finite (--on-nan rollback).
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "worker_runtime/checkpoint/state_piece.hpp"

namespace dtrun::runtime {

// Two copies in host memory that no account is charged for: `every` steps apart, the newest of the last of them. All
// ranks keep and return in the same steps. Owned by the trainer, one thread. Throws std::bad_alloc.
class KeptStates {
 public:
  KeptStates(std::vector<StatePiece> state, std::int64_t every);
  // Of what no step was taken from yet, and after every step whose numbers were finite: copies the state when it is
  // time for that.
  void start(std::int64_t steps, std::int64_t optimizer_steps);
  void after_step(std::int64_t steps, std::int64_t optimizer_steps);

  struct Point {
    std::int64_t steps = 0;  // finished
    std::int64_t optimizer_steps = 0;
  };
  // Writes the newest copy back; the one before when no step was good since the last return. start() comes first.
  Point go_back();

 private:
  struct Copy {
    Point point;
    std::vector<Tensor> tensors;
  };
  std::vector<StatePiece> state_;
  std::int64_t every_;
  std::int64_t good_steps_ = 0;  // since the last copy or return
  bool is_back_ = false;         // without a good step since
  std::deque<Copy> copies_;      // oldest first
};

}  // namespace dtrun::runtime
