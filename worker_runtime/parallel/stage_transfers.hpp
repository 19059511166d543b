// compile()'s part for what goes between pipeline stages: SEND, RECV, their WAITs, and the buffers. Used by the writers
// of a step (compile.cpp, compile_shards.cpp), which say where in the program they are.
#pragma once

#include <deque>
#include <map>
#include <tuple>
#include <vector>

#include "worker_runtime/parallel/program.hpp"
#include "worker_runtime/parallel/schedule.hpp"

namespace dtrun::runtime {

// RECVs are written in the order in which the peer sends, each before the first WAIT that needs it or a later one.
// SENDs are waited for when several of a kind are on their way, and at the end. Fills program.transfers. Without stages
// of other ranks nothing is written.
class StageTransfers {
 public:
  explicit StageTransfers(Program& program);

  // Before the units of a run: the transfer that holds what they start from, or -1.
  int begin(const StageRun& run, std::vector<Action>& out);
  void after_forward(const StageRun& run, std::vector<Action>& out);
  void before_backward(int unit, int micro_batch, std::vector<Action>& out);
  void after_backward(int unit, int micro_batch, std::vector<Action>& out);
  // Behind the last run.
  void end_runs(std::vector<Action>& out);
  // Owners of tied parameters give their values to the others.
  void values(std::vector<Action>& out);

 private:
  using Key = std::tuple<Payload, int, int>;  // place (boundary, or number of the parameter), micro-batch
  struct Expected {
    Key key;
    Action action;  // RECV without its buffer
  };
  struct Posted {
    Action action;
    int number;  // in the order of all
  };
  using Kind = std::tuple<Payload, bool, std::int64_t>;  // of a buffer

  void expect_from(int peer);
  void send(Action action, std::vector<Action>& out);
  void post(int peer, std::vector<Action>& out);
  int take(const Key& key, int peer, std::vector<Action>& out);
  int acquire(const Action& action);
  void release(int transfer);
  void wait_sent(const Action& sent, std::vector<Action>& out);
  void exchange(Payload payload, bool owners_send, std::vector<Action>& out);
  void hold_tied(int micro_batch, std::vector<Action>& out);
  bool is_expected(const Key& key, int peer) const;
  int own_stage(int index) const;
  int last_use(int parameter) const;
  Action tied(ActionKind kind, Payload payload, const Tie& tie, int micro_batch) const;

  Program& program_;
  const int pp_rank_;
  std::map<int, std::deque<Expected>> expected_;                 // by peer, in the order of its sends
  std::map<Key, Posted> posted_;                                 // RECVs that nobody has waited for
  std::map<std::tuple<int, Payload>, std::deque<Action>> sent_;  // on their way, by peer
  int messages_ = 0;
  std::map<Kind, std::vector<int>> free_;
  std::map<std::tuple<int, int>, int> activations_, gradients_;  // held, by stage and micro-batch
  std::map<std::tuple<int, int>, Action> tied_;                  // the same by parameter and micro-batch: TAKE
};

}  // namespace dtrun::runtime
