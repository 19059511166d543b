// FlowCheck: follows the program of one rank and knows at every point which gradients are where. In which order units
// run is StageFlowCheck's. Used by check() only.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "worker_runtime/parallel/program.hpp"

namespace dtrun::runtime {

// A value for one walk over one program. `report` receives each problem as a sentence without rank.
class FlowCheck {
 public:
  using Report = std::function<void(std::string)>;
  FlowCheck(const Program& program, Report report);
  // Structure first; the walk only when the structure holds, since it indexes by what the actions say.
  void run();

 private:
  enum class Sum { open, running, done };
  struct Slot {            // where the gradient of one micro-batch grows: scratch, or (micro-batch 0) the bucket
    int micro_batch = -1;  // none
    bool started = false, complete = false;
  };

  bool structure_holds();
  bool slots_hold();
  bool actions_hold(const std::vector<Action>& actions);
  void setup();
  void visit(const Action& action);
  void message(const Action& action);
  void open_slot(const Action& action, int parameter);
  void backward(const Action& action);
  void backward_parameter(const Action& action, int parameter);
  void accumulate(const Action& action);
  void reduce(const Action& action);
  void update(const Action& action);
  void end();
  void problem(const Action& action, const std::string& text);
  Sum& bucket_of(int parameter) {
    return sums_[static_cast<std::size_t>(bucket_[static_cast<std::size_t>(parameter)])];
  }
  bool sums_done() const;

  const Program& program_;
  Report report_;
  bool failed_ = false;
  int units_;
  std::vector<int> bucket_;     // parameter -> buffer
  std::vector<int> first_use_;  // parameter -> unit
  std::vector<int> in_bucket_;  // parameter -> micro-batches summed
  std::vector<Slot> in_slot_;   // parameter
  std::vector<Sum> sums_;       // buffer
  int losses_ = 0;              // to be taken
  bool partial_summed_ = false;
  bool clipped_ = false;
  bool optimized_ = false;
};

}  // namespace dtrun::runtime
