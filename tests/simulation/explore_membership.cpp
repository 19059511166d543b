// explore_membership [--plant early_gone] [--states N] [--crashes N] [--confirm MS]: every history of 3 agents over 2
// rounds with 2 crashes and one failing worker, as far as the code can tell them apart: all orders in which messages
// arrive, processes stop and agents die. Time passes while no message is under way. Exit code 1 and the history when an
// invariant is broken or a state is reached from which nothing follows.
#include <fmt/compile.h>
#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "rendezvous/membership/coordinator.hpp"
#include "rendezvous/membership/member.hpp"

using namespace dtrun;
using namespace dtrun::rendezvous;
using Time = Clock::time_point;

namespace {

constexpr std::size_t kAgents = 3;
constexpr Epoch kRounds = 2;
constexpr int kCrashes = 2, kFailures = 1;

struct Agent {
  bool up = true;
  Member member{Hello{}};
  std::deque<ToCoordinator> to_coordinator;
  std::deque<ToAgent> to_agent;
  bool closed_by_agent = false;  // the end follows what is under way
  bool closed_by_coordinator = false;
  bool gone_told = false;
  std::optional<Epoch> store_wanted;
  Epoch running = 0;  // round whose processes are alive
  std::optional<Epoch> stopping;
  bool told_gone = false;  // planted mistake: the member believes that its workers are gone
  bool ended = false;      // reported
};

// What happens in one step; as text only when a history is told. "{0}" is the agent, "{1}" the number.
struct Happening {
  const char* text;
  std::size_t agent = 0, number = 0;
};

struct Step {
  Happening what;
  std::shared_ptr<const Step> before;
};

struct State {
  Time now{};
  Coordinator coordinator{JobRules{}, Time{}};
  std::array<Agent, kAgents> agents;
  int crashes = kCrashes, failures = kFailures;
  std::shared_ptr<const Step> history;
  std::string wrong;
};

bool plant_early_gone = false;
std::chrono::milliseconds confirm{0};

JobRules rules() {
  JobRules rules;
  rules.job = "job";
  rules.min_nodes = 1;
  rules.max_nodes = static_cast<int>(kAgents);
  rules.max_restarts = 1;
  rules.last_call = std::chrono::milliseconds(0);
  rules.confirm = confirm;
  // Rare heartbeats: how they mix with everything else is the simulation's subject.
  rules.heartbeat = std::chrono::hours(1);
  rules.dead_after = std::chrono::hours(4);
  return rules;
}

void member_step(State& state, std::size_t index, const MemberEvent& event);

void coordinator_step(State& state, const CoordinatorEvent& event) {
  for (const auto& effect : state.coordinator.step(event, state.now)) {
    if (const auto* send = std::get_if<SendTo>(&effect)) {
      auto& agent = state.agents[send->agent - 1];
      if (!agent.closed_by_coordinator) agent.to_agent.push_back(send->message);
    } else if (const auto* close = std::get_if<CloseAgent>(&effect)) {
      state.agents[close->agent - 1].closed_by_coordinator = true;
    }
  }
  if (state.coordinator.restarts() > 1) state.wrong = "more restarts than allowed";
}

void carry_out(State& state, std::size_t index, const MemberEffect& effect) {
  auto& agent = state.agents[index];
  if (const auto* say = std::get_if<Say>(&effect)) {
    if (!agent.closed_by_agent) agent.to_coordinator.push_back(say->message);
  } else if (const auto* open = std::get_if<OpenStore>(&effect)) {
    agent.store_wanted = open->epoch;
  } else if (const auto* start = std::get_if<StartWorkers>(&effect)) {
    agent.running = start->place.epoch;
    agent.ended = false;
    for (const auto& other : state.agents) {
      if (other.up && other.running != 0 && other.running != agent.running)
        state.wrong = fmt::format("rounds {} and {} run at the same time", other.running, agent.running);
    }
  } else if (const auto* stop = std::get_if<StopWorkers>(&effect)) {
    agent.stopping = stop->epoch;
    agent.told_gone = plant_early_gone;
  } else if (std::holds_alternative<Exit>(effect) || std::holds_alternative<Reconnect>(effect)) {
    if (agent.running != 0) state.wrong = "an agent gives up its connection before its workers are gone";
    agent.closed_by_agent = true;
    agent.up = false;
  }
}

void member_step(State& state, std::size_t index, const MemberEvent& event) {
  auto& agent = state.agents[index];
  for (const auto& effect : agent.member.step(event, state.now)) carry_out(state, index, effect);
  if (std::exchange(agent.told_gone, false)) member_step(state, index, WorkersGone{*agent.stopping});
}

using Move = std::pair<Happening, std::function<void(State&)>>;

void moves_of_agent(const State& state, std::size_t i, std::vector<Move>& moves) {
  const auto& agent = state.agents[i];
  if (!agent.to_coordinator.empty()) {
    moves.emplace_back(Happening{"{0} -> coordinator: {1}", i, agent.to_coordinator.front().index()}, [i](State& s) {
      const auto message = s.agents[i].to_coordinator.front();
      s.agents[i].to_coordinator.pop_front();
      if (!s.agents[i].closed_by_coordinator) coordinator_step(s, AgentSaid{i + 1, message});
    });
  } else if (agent.closed_by_agent && !agent.gone_told) {
    moves.emplace_back(Happening{"the end of {0} is seen", i}, [i](State& s) {
      s.agents[i].gone_told = true;
      if (!s.agents[i].closed_by_coordinator) coordinator_step(s, AgentGone{i + 1});
    });
  }
  if (!agent.up) return;
  if (!agent.to_agent.empty()) {
    moves.emplace_back(Happening{"coordinator -> {0}: {1}", i, agent.to_agent.front().index()}, [i](State& s) {
      const auto message = s.agents[i].to_agent.front();
      s.agents[i].to_agent.pop_front();
      member_step(s, i, CoordinatorSaid{message});
    });
  } else if (agent.closed_by_coordinator && !agent.closed_by_agent) {
    moves.emplace_back(Happening{"{0} sees the coordinator's end", i}, [i](State& s) {
      s.agents[i].closed_by_agent = true;
      member_step(s, i, ConnectionLost{"closed"});
    });
  }
  if (agent.store_wanted) {
    moves.emplace_back(Happening{"{0} has opened the store", i}, [i](State& s) {
      const auto epoch = *s.agents[i].store_wanted;
      s.agents[i].store_wanted.reset();
      member_step(s, i, StoreOpened{epoch, 1});
    });
  }
  if (agent.stopping) {
    moves.emplace_back(Happening{"the workers of {0} are gone", i}, [i](State& s) {
      const auto epoch = *s.agents[i].stopping;
      s.agents[i].stopping.reset();
      s.agents[i].running = 0;
      member_step(s, i, WorkersGone{epoch});
    });
  } else if (agent.running != 0 && !agent.ended) {
    moves.emplace_back(Happening{"the workers of {0} end well", i}, [i](State& s) {
      s.agents[i].ended = true;
      member_step(s, i, WorkersEnded{Report{s.agents[i].running, true, true, {}}});
    });
    if (state.failures > 0) {
      moves.emplace_back(Happening{"a worker of {0} fails", i}, [i](State& s) {
        --s.failures;
        s.agents[i].ended = true;
        member_step(s, i, WorkersEnded{Report{s.agents[i].running, false, true, {1, "failed", "", 0}}});
      });
    }
  }
  if (state.crashes > 0) {
    moves.emplace_back(Happening{"agent {0} is killed", i}, [i](State& s) {
      auto& killed = s.agents[i];
      --s.crashes;
      killed.up = false;
      killed.closed_by_agent = true;
      killed.running = 0;
      killed.to_agent.clear();
      killed.store_wanted.reset();
      killed.stopping.reset();
    });
  }
}

std::vector<Move> moves_of(const State& state) {
  std::vector<Move> moves;
  bool quiet = true;
  for (std::size_t i = 0; i < kAgents; ++i) {
    const auto& agent = state.agents[i];
    quiet = quiet && agent.to_coordinator.empty() && (agent.to_agent.empty() || !agent.up) && !agent.stopping &&
            !agent.store_wanted && (agent.gone_told || !agent.closed_by_agent);
    moves_of_agent(state, i, moves);
  }
  auto next = state.coordinator.next_deadline();
  for (const auto& agent : state.agents) {
    if (agent.up) next = std::min(next, agent.member.next_deadline());
  }
  if (quiet && next != Time::max()) {
    moves.emplace_back(Happening{"time passes"}, [next](State& s) {
      s.now = std::max(s.now, next);
      coordinator_step(s, TimePassed{});
      for (std::size_t i = 0; i < kAgents; ++i) {
        if (s.agents[i].up) member_step(s, i, Tick{});
      }
    });
  }
  return moves;
}

std::string fingerprint(const State& state) {
  auto text =
      state.coordinator.fingerprint(state.now) + fmt::format(FMT_COMPILE("|{} {}"), state.crashes, state.failures);
  for (const auto& agent : state.agents) {
    text += fmt::format(FMT_COMPILE("|{}{}{}{}{} {} {} {} "), int{agent.up}, int{agent.closed_by_agent},
                        int{agent.closed_by_coordinator}, int{agent.gone_told}, int{agent.ended}, agent.running,
                        agent.store_wanted.value_or(0), agent.stopping.value_or(0));
    if (agent.up) text += agent.member.fingerprint(state.now);
    for (const auto& message : agent.to_coordinator) {
      text += fmt::format(FMT_COMPILE("^{}"), message.index());
      if (const auto* beat = std::get_if<Heartbeat>(&message))
        text += fmt::format(FMT_COMPILE(".{}"), agent.member.last_beat() - beat->number);
      if (const auto* report = std::get_if<Report>(&message))
        text += fmt::format(FMT_COMPILE(".{}{}"), report->epoch, int{report->success});
      if (const auto* stopped = std::get_if<Stopped>(&message)) text += fmt::format(FMT_COMPILE(".{}"), stopped->epoch);
      if (const auto* ready = std::get_if<Ready>(&message)) text += fmt::format(FMT_COMPILE(".{}"), ready->epoch);
    }
    for (const auto& message : agent.to_agent) {
      text += fmt::format(FMT_COMPILE("v{}"), message.index());
      if (const auto* answer = std::get_if<HeartbeatAnswer>(&message))
        text += fmt::format(FMT_COMPILE(".{}"), agent.member.last_beat() - answer->number);
      if (const auto* place = std::get_if<Assignment>(&message))
        text += fmt::format(FMT_COMPILE(".{}.{}"), place->epoch, place->first_rank);
      if (const auto* stop = std::get_if<Stop>(&message)) text += fmt::format(FMT_COMPILE(".{}"), stop->epoch);
      if (const auto* start = std::get_if<Start>(&message)) text += fmt::format(FMT_COMPILE(".{}"), start->epoch);
    }
  }
  return text;
}

int tell(const State& state, const std::string& what) {
  fmt::print("{}\n", what);
  std::vector<std::string> lines;
  for (auto step = state.history; step; step = step->before)
    lines.push_back(fmt::format(fmt::runtime(step->what.text), step->what.agent, step->what.number));
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) fmt::print("  {}\n", *line);
  return 1;
}

}  // namespace

int main(int argc, char* argv[]) {
  std::size_t limit = 20'000'000;
  int crashes = kCrashes;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string(argv[i]) == "--states") limit = std::strtoull(argv[i + 1], nullptr, 10);
    if (std::string(argv[i]) == "--confirm") confirm = std::chrono::milliseconds(std::atoi(argv[i + 1]));
    if (std::string(argv[i]) == "--crashes") crashes = std::atoi(argv[i + 1]);
    if (std::string(argv[i]) == "--plant") plant_early_gone = std::string(argv[i + 1]) == "early_gone";
  }
  State first;
  first.crashes = crashes;
  first.coordinator = Coordinator(rules(), first.now);
  for (std::size_t i = 0; i < kAgents; ++i) {
    Hello hello;
    hello.job = "job";
    hello.node = fmt::format("node{}", i);
    first.agents[i].member = Member(hello);
    member_step(first, i, Connected{});
  }
  std::unordered_set<std::size_t> seen;
  std::deque<State> open{first};  // the shortest history to a mistake is found first
  std::size_t ends = 0;
  while (!open.empty() && seen.size() < limit) {
    const State state = std::move(open.front());
    open.pop_front();
    const auto moves = moves_of(state);
    if (moves.empty()) {
      ++ends;
      if (!state.coordinator.over()) return tell(state, "nothing follows, and the job is not over:");
      for (const auto& agent : state.agents) {
        if (agent.up) return tell(state, "the job is over, and an agent waits:");
      }
    }
    for (const auto& [what, make] : moves) {
      State next = state;
      make(next);
      const bool wrong = !next.wrong.empty();
      if (!wrong && next.coordinator.epoch() > kRounds) continue;
      if (!wrong && !seen.insert(std::hash<std::string>{}(fingerprint(next))).second) continue;
      next.history = std::make_shared<const Step>(Step{what, state.history});
      if (wrong) return tell(next, next.wrong + ":");
      open.push_back(std::move(next));
    }
  }
  fmt::print("{} states, {} ends, nothing wrong{}\n", seen.size(), ends, open.empty() ? "" : " so far");
  return 0;
}
