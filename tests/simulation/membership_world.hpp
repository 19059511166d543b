// A world for the membership code: agents, their workers, one coordinator and the network between them, in simulated
// time. The same seed is the same history, to the byte. Invariants are checked as things happen.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "rendezvous/membership/coordinator.hpp"
#include "rendezvous/membership/member.hpp"

namespace dtrun::simulation {

using rendezvous::Epoch;
using Time = Clock::time_point;
using std::chrono::milliseconds;

// A mistake built in on purpose, to see that it is found.
enum class Plant { none, no_fence, early_gone };

struct WorldOptions {
  std::uint64_t seed = 0;
  Plant plant = Plant::none;
  bool trace = false;
};

class World {
 public:
  explicit World(WorldOptions options);
  // The whole history. What is wrong with it, or nothing.
  std::optional<std::string> run();
  std::uint64_t messages() const { return messages_; }

 private:
  struct Workers {
    bool alive = false;
    rendezvous::Assignment place;
    rendezvous::Start start;
    std::uint64_t generation = 0;
  };
  // One machine; its agent may die and be started again.
  struct Machine {
    std::string node;
    int slots = 1;
    std::optional<rendezvous::Member> member;  // while the agent runs
    std::uint64_t life = 0;                    // of the agent: what was planned for an earlier one does not happen
    std::uint64_t connection = 0;              // 0: none
    bool paused = false;
    Time excused_until;  // it was paused: it stops its workers now
    bool cut = false;    // from the coordinator
    Workers workers;
    std::optional<int> exit_code;
    std::vector<std::function<void()>> missed;  // while paused
    std::optional<Time> tick;
  };
  // Both directions of one connection. What is sent while it is cut arrives after the healing.
  struct Connection {
    std::size_t machine = 0;
    bool coordinator_end = true, agent_end = true;  // open
    Time last_up, last_down;                        // messages stay in order
  };

  // Time.
  void at(Time when, std::function<void()> what);
  void after(milliseconds delay, std::function<void()> what) { at(now_ + delay, std::move(what)); }
  int draw(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }
  void trace(const std::string& line);
  void wrong(const std::string& what);

  // Network.
  milliseconds delay(const Machine& machine);
  void connect(std::size_t index);
  void up(std::uint64_t connection, rendezvous::ToCoordinator message);
  void down(std::uint64_t connection, rendezvous::ToAgent message);
  void deliver_up(std::uint64_t connection, const rendezvous::ToCoordinator& message);
  void deliver_down(std::uint64_t connection, const rendezvous::ToAgent& message);
  void close_by_agent(std::uint64_t connection);
  void close_by_coordinator(std::uint64_t connection);

  // Actors.
  void coordinator_step(const rendezvous::CoordinatorEvent& event);
  void member_step(std::size_t index, const rendezvous::MemberEvent& event);
  void carry_out(std::size_t index, const rendezvous::MemberEffect& effect);
  void start_workers(std::size_t index, const rendezvous::StartWorkers& order);
  void workers_gone(std::size_t index, Epoch epoch);
  void worker_fails(std::size_t index);

  // Faults.
  void plan_faults();
  void fault(std::size_t index);
  void start_agent(std::size_t index);
  void crash(std::size_t index);
  void pause(std::size_t index, milliseconds length);
  void cut(std::size_t index, milliseconds length);
  void mend();

  void check_start(const Machine& machine);
  void check_end();

  WorldOptions options_;
  std::mt19937_64 random_;
  rendezvous::JobRules rules_;
  bool ranked_ = false;  // machines have node ranks
  Time now_{};
  std::multimap<Time, std::function<void()>> queue_;
  std::optional<rendezvous::Coordinator> coordinator_;
  std::optional<Time> coordinator_tick_;
  std::vector<Machine> machines_;
  std::map<std::uint64_t, Connection> connections_;
  std::uint64_t next_connection_ = 0, messages_ = 0;
  bool mended_ = false;  // no more faults, and none of them lasts
  // What the agents of a round were told.
  struct Round {
    int world_size = 0, group_world_size = 0, restart_count = 0;
    std::string store;
    std::set<int> ranks, groups;
  };
  std::map<Epoch, Round> rounds_;
  std::optional<std::string> wrong_;
};

}  // namespace dtrun::simulation
