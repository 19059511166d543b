// Where rounds come from: one start of all workers of a job follows another, and somebody decides which and when.
//   local_rounds    a job on one node: at once, as often as its budget allows
//   static_rounds   --rdzv-backend static on several nodes: each node by itself, after one exchange of ranks
//   shared_rounds   --rdzv-backend c10d on several nodes: the coordinator, for everybody
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "rendezvous/membership/messages.hpp"

namespace boost::asio {
class io_context;
}

namespace dtrun::launcher {

struct JobPlan;
struct LaunchConfig;

// One round as this node sees it: what its workers are told.
struct Round {
  int number = 0;    // from 0: names directories and events
  int restarts = 0;  // of them after failures: TORCHELASTIC_RESTART_COUNT
  int group_rank = 0;
  int group_world_size = 1;
  int first_rank = 0;  // of this node's workers
  int world_size = 1;
  int first_role_rank = 0;
  int role_world_size = 1;
  std::string master_addr;
  int master_port = 0;
  bool agent_store = true;  // false: the worker of rank 0 opens the store itself
};

enum class RoundStop {
  next_round,  // another one follows
  job_ends,
  at_once,  // this node must not go on: no grace period. Whoever decides it tells the user
};

// Owner: the agent, its thread and io_context. The listener is called on that thread, also from inside join(), again()
// and succeeded(); all may throw SystemError, UsageError, RendezvousError.
class Rounds {
 public:
  struct Listener {
    std::function<void(const Round&)> start;
    std::function<void(RoundStop, const std::string& why)> stop;  // then gone(); only of shared rounds
    std::function<void(const std::string& why)> another;   // round follows, and this one's processes are gone already
    std::function<void(const rendezvous::Verdict&)> over;  // the last call
    std::function<void(const std::string& line)> note;     // for the user
  };
  virtual ~Rounds() = default;

  // True: a failure anywhere ends the round everywhere, and whether another one follows is not this node's decision.
  virtual bool shared() const { return false; }
  virtual void join() = 0;  // start() follows
  // After a failure on this node, when it decides itself: start() follows.
  virtual void again(int /*restarts*/) {}
  // Of shared rounds: the first failure of a worker in this round, perhaps only the echo of one on another node.
  virtual void failed(const rendezvous::Report& /*report*/, bool /*blames_another_node*/) {}
  virtual void succeeded() = 0;  // every worker ended with 0; over() follows when the others are done
  // Of shared rounds: no process of this round is left on this node, whose slowest worker (of those that tell) had
  // finished `step` steps; -1: none tells.
  virtual void gone(std::int64_t /*step*/) {}
  // Of shared rounds: a stop signal. over() follows once gone() was called. Of others: this node ends with a failure.
  virtual void leave(const rendezvous::Verdict& /*verdict*/) {}
};

std::unique_ptr<Rounds> make_rounds(boost::asio::io_context& io, const LaunchConfig& config, const JobPlan& plan,
                                    Rounds::Listener listener);

}  // namespace dtrun::launcher
