// StageFlowCheck: follows the program of one rank and knows at every point how far each micro-batch is in each stage,
// and what is in every transfer buffer. Used by check() only; knows nothing of how compile() works.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "worker_runtime/parallel/program.hpp"

namespace dtrun::runtime {

// A value for one walk over one program. `report` receives each problem as a sentence without rank.
class StageFlowCheck {
 public:
  using Report = std::function<void(std::string)>;
  StageFlowCheck(const Program& program, Report report);
  // False when the program cannot even be walked over: the other checks index by what it says.
  bool run();

 private:
  struct Flight {      // one micro-batch in one stage
    int forward = 0;   // next unit
    int backward = 0;  // next unit, downwards
    bool output_sent = false, gradient_sent = false, loss = false;
    int recomputed = -1;  // the unit that BACKWARD must take next
  };
  struct Transfer {
    enum class State { free, sending, receiving, holding } state = State::free;
    Action message{};
  };

  bool stages_hold();
  bool actions_hold(const std::vector<Action>& actions);
  bool message_holds(const Action& action) const;
  void visit(const Action& action);
  void forward(const Action& action);
  void loss(const Action& action);
  void backward(const Action& action);
  void recompute(const Action& action);
  void send(const Action& action);
  void recv(const Action& action);
  void wait(const Action& action);
  void take(const Action& action, Payload payload, bool expected, bool keep);
  void tied_value(const Action& action);
  void end();
  void problem(const Action& action, const std::string& text);
  Flight& flight(int unit, int micro_batch);
  const Stage& stage(int unit) const;

  const Program& program_;
  Report report_;
  const int units_, most_in_flight_;
  std::vector<std::vector<Flight>> flights_;  // by stage and micro-batch
  std::vector<Transfer> transfers_;
  std::map<std::pair<int, int>, int> tied_gradients_;  // messages, by parameter and micro-batch
  std::map<int, int> tied_values_;                     // messages, by parameter
  int in_flight_ = 0, losses_ = 0;
  bool optimized_ = false, failed_ = false;
};

}  // namespace dtrun::runtime
