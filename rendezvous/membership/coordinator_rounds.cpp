// From agents to rounds: gather, assign, start, stop, finish.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "rendezvous/base/counted.hpp"
#include "rendezvous/membership/coordinator.hpp"
#include "rendezvous/membership/rank_order.hpp"

namespace dtrun::rendezvous {

void Coordinator::gather() {
  phase_ = RoundPhase::gathering;
  phase_since_ = now_;
  enough_since_.reset();
  was_short_ = nodes_here() < static_cast<std::size_t>(rules_.min_nodes);
  status_at_ = now_ + rules_.status;
  form_when_possible();
}

// With all nodes: at once. With enough: at once when nobody had to wait for them, else after the last call.
void Coordinator::form_when_possible() {
  const auto here = nodes_here();
  if (here < static_cast<std::size_t>(rules_.min_nodes)) {
    if (!was_short_ || enough_since_) phase_since_ = now_;  // the budget starts when a node is missing
    was_short_ = true;
    enough_since_.reset();
    if (phase_since_ + rules_.join_timeout > now_) return;
    return finish({75,
                   fmt::format("only {} of {} came within {} s", here, counted(rules_.min_nodes, "node"),
                               rules_.join_timeout.count() / 1000),
                   "", -1});
  }
  if (!enough_since_) enough_since_ = now_;
  if (not_before_ > now_) return;
  const bool all = here >= static_cast<std::size_t>(rules_.max_nodes);
  if (all || !was_short_ || *enough_since_ + rules_.last_call <= now_) form();
}

void Coordinator::form() {
  std::vector<Candidate> here;
  for (const auto& [id, agent] : agents_) {
    if (agent.known && !agent.leaving) here.push_back({id, agent.hello.node, agent.hello.node_rank});
  }
  members_ = rank_order(members_, std::move(here), static_cast<std::size_t>(rules_.max_nodes));
  ++epoch_;
  phase_ = RoundPhase::assigning;
  phase_since_ = now_;
  store_host_.clear();
  store_port_ = 0;
  int world = 0;
  std::map<std::string, int> role_sizes, role_ranks;
  for (const auto id : members_) {
    const auto& hello = agents_.at(id).hello;
    world += hello.slots;
    role_sizes[hello.role] += hello.slots;
  }
  Assignment place;
  place.epoch = epoch_;
  place.restart_count = budget_.restarts;
  place.group_world_size = static_cast<int>(members_.size());
  place.world_size = world;
  for (const auto id : members_) {
    auto& agent = agents_.at(id);
    agent.ready = agent.succeeded = agent.stopped = agent.asked = false;
    agent.step = -1;
    place.slots = agent.hello.slots;
    place.open_store = place.group_rank == 0;
    place.first_role_rank = std::exchange(role_ranks[agent.hello.role], role_ranks[agent.hello.role] + place.slots);
    place.role_world_size = role_sizes[agent.hello.role];
    send(id, place);
    ++place.group_rank;
    place.first_rank += place.slots;
  }
}

void Coordinator::start_when_ready() {
  const bool all = std::all_of(members_.begin(), members_.end(), [&](auto id) { return agents_.at(id).ready; });
  if (!all) return;
  phase_ = RoundPhase::running;
  phase_since_ = now_;
  send_members(Start{epoch_, store_host_, store_port_});
  for (const auto& [id, agent] : agents_) {
    if (agent.known && !agent.leaving && !is_member(id)) tell_spare(id);
  }
}

void Coordinator::stop_round(const std::string& why) {
  phase_ = RoundPhase::stopping;
  failure_.reset();
  phase_since_ = now_;
  send_members(Stop{epoch_, why});
  next_round_when_stopped();
}

void Coordinator::next_round_when_stopped() {
  const bool all = std::all_of(members_.begin(), members_.end(), [&](auto id) {
    const auto found = agents_.find(id);
    return found == agents_.end() || found->second.stopped;
  });
  if (!all) return;
  // Often only the worker of rank 0 tells how far it is, and another one fails.
  std::int64_t slowest = -1;
  for (const auto id : members_) {
    const auto found = agents_.find(id);
    if (found == agents_.end() || found->second.step < 0) continue;
    slowest = slowest < 0 ? found->second.step : std::min(slowest, found->second.step);
  }
  budget_.progressed(slowest);
  gather();
}

void Coordinator::finish(Verdict verdict) {
  verdict_ = std::move(verdict);
  phase_ = RoundPhase::ending;
  failure_.reset();
  phase_since_ = now_;
  std::vector<std::uint64_t> strangers;
  for (const auto& [id, agent] : agents_) {
    if (agent.known) {
      send(id, Finished{verdict_});
    } else {
      strangers.push_back(id);
    }
  }
  for (const auto id : strangers) drop(id, "the job has ended", false);
}

void Coordinator::tell_who_is_missing() {
  const auto here = static_cast<int>(nodes_here());
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now_ - phase_since_).count();
  status_at_ = now_ + rules_.status;
  for (const auto& [id, agent] : agents_) {
    if (agent.known) send(id, Waiting{here, rules_.min_nodes, static_cast<int>(seconds), 0});
  }
}

void Coordinator::tell_spare(std::uint64_t id) {
  send(id, Waiting{static_cast<int>(nodes_here()), rules_.max_nodes, 0, static_cast<int>(members_.size())});
}

// After a round that had to be stopped.
std::string Coordinator::what_follows() const {
  const int missing = rules_.min_nodes - static_cast<int>(nodes_here());
  if (missing <= 0) return "a new round follows";
  return "waiting for " + counted(missing, "more node");
}

}  // namespace dtrun::rendezvous
