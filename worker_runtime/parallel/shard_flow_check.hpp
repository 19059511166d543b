// ShardFlowCheck: follows the program of one rank that has or updates a part of each parameter, and knows at every
// point which are whole and where gradients are. In which order units run is StageFlowCheck's. Used by check() only;
// knows nothing of how compile() works.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "worker_runtime/parallel/program.hpp"

namespace dtrun::runtime {

// A value for one walk over one program. `report` receives each problem as a sentence without rank.
class ShardFlowCheck {
 public:
  using Report = std::function<void(std::string)>;
  ShardFlowCheck(const Program& program, Report report);
  // Structure first; the walk only when the structure holds, since it indexes by what the actions say.
  void run();

 private:
  enum class Values { split, gathering, whole };
  enum class Sum { none, running, arrived };  // arrived: waits for ACCUMULATE; where gradients stay whole: done
  struct Owner {                              // what one unit owns
    Values values = Values::split;            // split, where values stay whole: those of other ranks are not there yet
    int kept = 0;                             // what RESHARD kept, Action::ways
    int gradients_of = -1;                    // micro-batch whose whole gradients exist, or -1
    bool complete = false;                    // they are
    Sum sum = Sum::none;
    int summed = 0;  // micro-batches in this rank's part, or in the whole where gradients stay whole
  };

  bool groups_hold();
  bool buffers_hold();
  bool actions_hold(const std::vector<Action>& actions);
  void setup();
  void visit(const Action& action);
  void message(const Action& action);
  void values(const Action& action);
  void compute(const Action& action);
  void backward(const Action& action);
  void reduce(const Action& action);
  void wait(const Action& action);
  void accumulate(const Action& action);
  void update(const Action& action);
  void values_at_rest(const Action& action);
  void end();
  void problem(const Action& action, const std::string& text);
  Owner& owner(int unit) { return owners_[static_cast<std::size_t>(unit)]; }
  bool stay_whole() const { return !program_.config.splits_parameters(); }  // the values
  bool owns(int unit) const { return !program_.shards[static_cast<std::size_t>(unit)].slots.empty(); }

  const Program& program_;
  Report report_;
  const int units_;
  std::vector<Owner> owners_;      // by unit
  std::vector<int> buffer_owner_;  // by buffer; -1: the metrics
  int losses_ = 0;                 // to be taken
  int whole_gradients_ = 0;        // units that have some
  Sum metrics_ = Sum::none;
  bool partial_summed_ = false, clipped_ = false, optimized_ = false, failed_ = false;
};

}  // namespace dtrun::runtime
