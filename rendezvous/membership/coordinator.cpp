#include "rendezvous/membership/coordinator.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "rendezvous/base/counted.hpp"

namespace dtrun::rendezvous {

using std::chrono::milliseconds;

Coordinator::Coordinator(JobRules rules, Time now)
    : rules_(std::move(rules)),
      budget_{rules_.max_restarts, rules_.max_no_progress_restarts},
      now_(now),
      phase_since_(now),
      status_at_(now + rules_.status) {}

CoordinatorEffects Coordinator::step(const CoordinatorEvent& event, Time now) {
  now_ = std::max(now_, now);
  if (const auto* connected = std::get_if<AgentConnected>(&event)) {
    if (!over()) agents_.try_emplace(connected->agent).first->second.heard = now_;
  } else if (const auto* said_event = std::get_if<AgentSaid>(&event)) {
    said(said_event->agent, said_event->message);
  } else if (const auto* gone = std::get_if<AgentGone>(&event)) {
    if (agents_.contains(gone->agent)) lose(gone->agent, "its connection ended");
  } else if (const auto* host = std::get_if<HostStops>(&event)) {
    if (phase_ != RoundPhase::ending && !over()) finish(host->verdict);
  }
  look_at_clocks();
  return std::exchange(effects_, {});
}

std::size_t Coordinator::nodes_here() const {
  return static_cast<std::size_t>(std::count_if(
      agents_.begin(), agents_.end(), [](const auto& entry) { return entry.second.known && !entry.second.leaving; }));
}

bool Coordinator::is_member(std::uint64_t id) const {
  return std::find(members_.begin(), members_.end(), id) != members_.end();
}

std::string Coordinator::describe(std::uint64_t id) const {
  const auto found = agents_.find(id);
  return found == agents_.end() ? "?" : found->second.hello.node;
}

void Coordinator::send_members(const ToAgent& message) {
  for (const auto id : members_) {
    if (agents_.contains(id)) send(id, message);
  }
}

void Coordinator::said(std::uint64_t id, const ToCoordinator& message) {
  if (over()) return;
  auto& agent = agents_[id];
  agent.heard = now_;
  if (!agent.known && !agent.rival && !std::holds_alternative<Hello>(message))
    return drop(id, "did not say hello first", false);
  agent.challenged.reset();
  agent.asked = false;
  std::visit([&](const auto& content) { hear(id, agent, content); }, message);
  settle_rivals(id);
  judge_when_confirmed();
}

// Empty when the agent is welcome.
std::string Coordinator::objection(const Hello& hello) const {
  if (hello.version != kMembershipVersion)
    return fmt::format("speaks version {} of the protocol, this job's version is {}", hello.version,
                       kMembershipVersion);
  if (hello.job != rules_.job) return fmt::format("belongs to job \"{}\", this is \"{}\"", hello.job, rules_.job);
  if (hello.slots < 1) return "offers " + counted(hello.slots, "worker");
  if (hello.node_rank && (*hello.node_rank < 0 || *hello.node_rank >= rules_.max_nodes))
    return fmt::format("has node rank {}, expected 0 to {}", *hello.node_rank, rules_.max_nodes - 1);
  return {};
}

void Coordinator::hear(std::uint64_t id, Agent& agent, const Hello& hello) {
  if (agent.known || agent.rival) return;  // said it already
  agent.hello = hello;
  if (const auto why = objection(hello); !why.empty()) return drop(id, why, false);
  if (phase_ == RoundPhase::ending) return drop(id, "the job has ended", false);
  // Somebody who holds its place, or comes from the same machine, may have died without a word.
  for (auto& [other_id, other] : agents_) {
    if (other_id == id || !other.known) continue;
    const bool same_rank = hello.node_rank && hello.node_rank == other.hello.node_rank;
    if (!same_rank && hello.node != other.hello.node) continue;
    if (!other.challenged) {
      other.challenged = now_;
      send(other_id, Ping{});
    }
    if (same_rank) {
      agent.rival = other_id;
      return;
    }
  }
  admit(id, agent);
  make_use_of(id);
}

void Coordinator::admit(std::uint64_t id, Agent& agent) {
  agent.known = true;
  agent.rival.reset();
  const auto& hello = agent.hello;
  if (hello.max_nodes > 0 && (hello.min_nodes != rules_.min_nodes || hello.max_nodes != rules_.max_nodes)) {
    note(fmt::format("{} was started with --nnodes {}:{}, the job has {}:{}, which counts", describe(id),
                     hello.min_nodes, hello.max_nodes, rules_.min_nodes, rules_.max_nodes));
  }
  send(id, Welcome{id, rules_.heartbeat.count(), rules_.dead_after.count()});
}

// A newcomer's effect on the round.
void Coordinator::make_use_of(std::uint64_t id) {
  const auto full = members_.size() >= static_cast<std::size_t>(rules_.max_nodes);
  const bool somebody_is_done = std::any_of(members_.begin(), members_.end(), [&](auto member) {
    return agents_.contains(member) && agents_.at(member).succeeded;
  });
  if (phase_ == RoundPhase::gathering) {
    form_when_possible();
  } else if (phase_ == RoundPhase::running && !full && !somebody_is_done && rules_.join_restarts) {
    stop_round(fmt::format("{} joins; {}", describe(id), what_follows()));
  } else if (phase_ == RoundPhase::running) {
    tell_spare(id);
  }
}

// The holder of a place has given a sign of life: whoever wants it is refused.
void Coordinator::settle_rivals(std::uint64_t answered) {
  std::vector<std::uint64_t> refused;
  for (const auto& [id, agent] : agents_) {
    if (agent.rival == answered) refused.push_back(id);
  }
  for (const auto id : refused) {
    drop(id, fmt::format("node rank {} is taken by {}", *agents_.at(id).hello.node_rank, describe(answered)), false);
  }
}

void Coordinator::hear(std::uint64_t id, Agent& agent, const Heartbeat& heartbeat) {
  if (agent.known) send(id, HeartbeatAnswer{heartbeat.number});
}

void Coordinator::hear(std::uint64_t id, Agent& agent, const Ready& ready) {
  if (phase_ != RoundPhase::assigning || ready.epoch != epoch_ || !is_member(id)) return;
  agent.ready = true;
  if (id == members_.front()) {
    store_host_ = ready.store_host.empty() ? agent.hello.address : ready.store_host;
    store_port_ = ready.store_port;
  }
  start_when_ready();
}

void Coordinator::hear(std::uint64_t id, Agent& agent, const Report& report) {
  if (phase_ != RoundPhase::running || report.epoch != epoch_ || !is_member(id) || failure_) return;
  if (report.success) {
    agent.succeeded = true;
    const bool all =
        std::all_of(members_.begin(), members_.end(), [&](auto member) { return agents_.at(member).succeeded; });
    if (all) finish({});
    return;
  }
  if (rules_.confirm.count() == 0) return judge(report);
  // Workers fail when those of a node that dies are gone, and may be heard of before its end: by another way, from a
  // machine that is quicker. What it is shows when every other node has been heard of.
  failure_ = report;
  failed_at_ = now_;
  for (const auto other : members_) {
    if (other == id) continue;
    agents_.at(other).asked = true;
    send(other, Ping{});
  }
}

void Coordinator::judge_when_confirmed() {
  if (!failure_ || phase_ != RoundPhase::running) return;
  const bool all = std::none_of(members_.begin(), members_.end(), [&](auto id) { return agents_.at(id).asked; });
  if (all || failed_at_ + rules_.confirm <= now_) judge(*std::exchange(failure_, std::nullopt));
}

void Coordinator::judge(const Report& report) {
  const auto no_restart = budget_.judge(report.step, report.out_of_memory);
  if (!report.retry || no_restart != NoRestart::none) {
    auto verdict = report.verdict;
    if (report.retry) verdict.no_restart = budget_.text(no_restart);
    return finish(std::move(verdict));
  }
  budget_.restart();
  auto which = fmt::format("restart {}", budget_.restarts);
  if (!budget_.max_no_progress) which += fmt::format(" of {}", budget_.max_restarts);
  stop_round(fmt::format("{}; {} follows", report.verdict.text, which));
}

void Coordinator::hear(std::uint64_t id, Agent& agent, const Stopped& stopped) {
  if (phase_ != RoundPhase::stopping || stopped.epoch != epoch_ || !is_member(id)) return;
  agent.stopped = true;
  agent.step = stopped.step;
  next_round_when_stopped();
}

// Its workers may run for a while yet: no new round before it has gone. At the job's end too: it hears of that when it
// was told to stop itself, and would kill workers that save their state if its connection were closed.
void Coordinator::hear(std::uint64_t id, Agent& agent, const Leave& leave) {
  const auto why = leave.reason.empty() ? "it left" : leave.reason;
  const bool ending = phase_ == RoundPhase::ending;
  const bool may_run =
      is_member(id) && (phase_ == RoundPhase::running || phase_ == RoundPhase::stopping || (ending && !agent.leaving));
  if (!may_run) {
    close(id);
    return lose(id, why);
  }
  if (agent.leaving) return;
  agent.leaving = true;
  if (phase_ == RoundPhase::running)
    stop_round(fmt::format("{} leaves: {}; {}", agent.hello.node, why, what_follows()));
}

// Refuses or expels; what it says from now on comes from nobody.
void Coordinator::drop(std::uint64_t id, const std::string& why, bool again) {
  send(id, Refuse{why, again});
  close(id);
  lose(id, why, false);
}

void Coordinator::lose(std::uint64_t id, const std::string& why, bool surely_dead) {
  const auto found = agents_.find(id);
  if (found == agents_.end()) return;
  const auto agent = std::move(found->second);
  agents_.erase(found);
  if (!agent.known) {
    if (!agent.hello.node.empty()) note(fmt::format("refused {}: {}", agent.hello.node, why));
    return;
  }
  // Its place is free for the first who wanted it.
  std::optional<std::uint64_t> heir;
  for (auto& [other_id, other] : agents_) {
    if (other.rival != id) continue;
    if (heir) {
      other.rival = heir;
    } else {
      heir = other_id;
      admit(other_id, other);
    }
  }
  const bool member = is_member(id);
  const bool may_run = phase_ == RoundPhase::running || (phase_ == RoundPhase::stopping && !agent.stopped);
  // From now on its heartbeats are not answered, so that it fences itself within this time of the last one.
  if (member && may_run && !surely_dead) not_before_ = std::max(not_before_, agent.heard + rules_.dead_after);
  switch (phase_) {
    case RoundPhase::gathering:
      form_when_possible();
      break;
    case RoundPhase::assigning:
      if (member) {
        note(fmt::format("lost {} before the start: {}", agent.hello.node, why));
        gather();
      }
      break;
    case RoundPhase::running:
      if (member) stop_round(fmt::format("{} is lost: {}; {}", agent.hello.node, why, what_follows()));
      break;
    case RoundPhase::stopping:
      next_round_when_stopped();
      break;
    case RoundPhase::ending:
      if (agents_.empty()) phase_ = RoundPhase::over;
      break;
    case RoundPhase::over:
      break;
  }
  if (heir) make_use_of(*heir);
}

void Coordinator::look_at_clocks() {
  std::vector<std::pair<std::uint64_t, std::string>> silent;
  for (const auto& [id, agent] : agents_) {
    if (agent.heard + rules_.dead_after <= now_) {
      silent.emplace_back(
          id, fmt::format("silent for {:.1f} s", std::chrono::duration<double>(now_ - agent.heard).count()));
    } else if (agent.challenged && *agent.challenged + rules_.challenge <= now_) {
      silent.emplace_back(id, "gave no sign of life when another agent asked for its place");
    } else if (phase_ == RoundPhase::assigning && is_member(id) && !agent.ready &&
               phase_since_ + rules_.ready_limit <= now_) {
      silent.emplace_back(id, "did not get ready");
    } else if (phase_ == RoundPhase::stopping && is_member(id) && !agent.stopped &&
               phase_since_ + rules_.stop_limit <= now_) {
      silent.emplace_back(id, "did not stop its workers");
    }
  }
  for (const auto& [id, why] : silent) drop(id, why, true);
  judge_when_confirmed();
  if (phase_ == RoundPhase::gathering) {
    form_when_possible();
    if (phase_ == RoundPhase::gathering && status_at_ <= now_) tell_who_is_missing();
  }
  if (phase_ == RoundPhase::ending && (agents_.empty() || phase_since_ + rules_.farewell <= now_))
    phase_ = RoundPhase::over;
}

Coordinator::Time Coordinator::next_deadline() const {
  auto at = Time::max();
  const auto due = [&](Time time) { at = std::min(at, time); };
  if (over()) return at;
  for (const auto& [id, agent] : agents_) {
    due(agent.heard + rules_.dead_after);
    if (agent.challenged) due(*agent.challenged + rules_.challenge);
  }
  switch (phase_) {
    case RoundPhase::gathering:
      due(status_at_);
      if (enough_since_) due(std::max(*enough_since_ + (was_short_ ? rules_.last_call : milliseconds(0)), not_before_));
      if (!enough_since_) due(phase_since_ + rules_.join_timeout);
      break;
    case RoundPhase::assigning:
      due(phase_since_ + rules_.ready_limit);
      break;
    case RoundPhase::stopping:
      due(phase_since_ + rules_.stop_limit);
      break;
    case RoundPhase::ending:
      due(phase_since_ + rules_.farewell);
      break;
    case RoundPhase::running:
      if (failure_) due(failed_at_ + rules_.confirm);
      break;
    case RoundPhase::over:
      break;
  }
  return at;
}

}  // namespace dtrun::rendezvous
