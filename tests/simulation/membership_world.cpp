#include "tests/simulation/membership_world.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace dtrun::simulation {

using namespace rendezvous;

namespace {

constexpr milliseconds kWorkTime{8000};      // a round that nobody disturbs ends well after this
constexpr milliseconds kFaultTime{30'000};   // faults happen before this
constexpr milliseconds kWholeTime{300'000};  // a job that is not over then hangs

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};

}  // namespace

World::World(WorldOptions options) : options_(options), random_(options.seed) {
  const int machines = 2 + draw(5);
  rules_.job = "job";
  rules_.max_nodes = 1 + draw(machines);
  rules_.min_nodes = 1 + draw(rules_.max_nodes);
  rules_.max_restarts = draw(4);
  rules_.join_restarts = draw(4) != 0;
  rules_.last_call = milliseconds(draw(2) * 3000);
  if (draw(4) == 0) rules_.join_timeout = milliseconds(1000 + draw(20'000));
  ranked_ = draw(4) == 0;
  if (ranked_) rules_.max_nodes = machines;
  if (draw(20) == 0) {
    after(milliseconds(draw(30'000)), [this] {
      trace("the host is stopped");
      coordinator_step(HostStops{{143, "the host was stopped", "node0", -1}});
    });
  }
  for (int i = 0; i < machines; ++i) {
    machines_.emplace_back();
    machines_.back().node = fmt::format("node{}", draw(3) == 0 ? 0 : i);
    machines_.back().slots = 1 + draw(3);
  }
}

void World::at(Time when, std::function<void()> what) { queue_.emplace(std::max(when, now_), std::move(what)); }

void World::trace(const std::string& line) {
  if (!options_.trace) return;
  fmt::print("{:9.3f} {}\n", std::chrono::duration<double>(now_.time_since_epoch()).count(), line);
}

void World::wrong(const std::string& what) {
  trace("WRONG: " + what);
  if (!wrong_) wrong_ = what;
}

std::optional<std::string> World::run() {
  trace(fmt::format("{} machines, nodes {}:{}, {} restarts", machines_.size(), rules_.min_nodes, rules_.max_nodes,
                    rules_.max_restarts));
  coordinator_.emplace(rules_, now_);
  coordinator_step(TimePassed{});
  for (std::size_t i = 0; i < machines_.size(); ++i) {
    after(milliseconds(draw(draw(2) == 0 ? 50 : 8000)), [this, i] { start_agent(i); });
  }
  plan_faults();
  at(Time(kFaultTime), [this] { mend(); });
  while (!queue_.empty() && !wrong_) {
    auto next = queue_.begin();
    now_ = next->first;
    const auto what = std::move(next->second);
    queue_.erase(next);
    if (now_ > Time(kWholeTime)) break;
    what();
  }
  if (!wrong_) check_end();
  return wrong_;
}

milliseconds World::delay(const Machine&) { return milliseconds(draw(50) == 0 ? draw(1500) : draw(20)); }

void World::connect(std::size_t index) {
  auto& machine = machines_[index];
  const auto life = machine.life;
  if (machine.cut || machine.paused) {
    after(milliseconds(500), [this, index, life] {
      if (machines_[index].life == life && machines_[index].connection == 0) connect(index);
    });
    return;
  }
  if (coordinator_->over()) {  // nobody listens any more
    machine.member.reset();
    if (!machine.exit_code) machine.exit_code = 75;
    return;
  }
  const auto id = ++next_connection_;
  machine.connection = id;
  connections_[id] = {index, true, true, now_, now_};
  member_step(index, Connected{});
}

void World::up(std::uint64_t id, ToCoordinator message) {
  auto& connection = connections_.at(id);
  if (!connection.agent_end) return;
  ++messages_;
  connection.last_up = std::max(connection.last_up, now_ + delay(machines_[connection.machine]));
  const bool twice = draw(100) == 0;
  at(connection.last_up, [this, id, message] { deliver_up(id, message); });
  if (twice) at(connection.last_up, [this, id, message] { deliver_up(id, message); });
}

void World::deliver_up(std::uint64_t id, const ToCoordinator& message) {
  auto& connection = connections_.at(id);
  if (!connection.coordinator_end) return;
  if (machines_[connection.machine].cut) {
    after(milliseconds(200), [this, id, message] { deliver_up(id, message); });
    return;
  }
  coordinator_step(AgentSaid{id, message});
}

void World::down(std::uint64_t id, ToAgent message) {
  auto& connection = connections_.at(id);
  if (!connection.coordinator_end) return;
  ++messages_;
  connection.last_down = std::max(connection.last_down, now_ + delay(machines_[connection.machine]));
  at(connection.last_down, [this, id, message] { deliver_down(id, message); });
}

void World::deliver_down(std::uint64_t id, const ToAgent& message) {
  auto& connection = connections_.at(id);
  auto& machine = machines_[connection.machine];
  if (!connection.agent_end || machine.connection != id) return;
  if (machine.cut) {
    after(milliseconds(200), [this, id, message] { deliver_down(id, message); });
    return;
  }
  member_step(connection.machine, CoordinatorSaid{message});
}

void World::close_by_agent(std::uint64_t id) {
  auto& connection = connections_.at(id);
  connection.agent_end = false;
  // The end travels behind what was sent, and not at all while the network is cut.
  connection.last_up = std::max(connection.last_up, now_ + delay(machines_[connection.machine]));
  at(connection.last_up, [this, id] {
    auto& ended = connections_.at(id);
    if (machines_[ended.machine].cut || !ended.coordinator_end) return;
    ended.coordinator_end = false;
    coordinator_step(AgentGone{id});
  });
}

void World::close_by_coordinator(std::uint64_t id) {
  auto& connection = connections_.at(id);
  connection.coordinator_end = false;
  connection.last_down = std::max(connection.last_down, now_ + delay(machines_[connection.machine]));
  at(connection.last_down, [this, id] {
    auto& ended = connections_.at(id);
    auto& machine = machines_[ended.machine];
    if (machine.cut || !ended.agent_end || machine.connection != id) return;
    ended.agent_end = false;
    machine.connection = 0;
    member_step(ended.machine, ConnectionLost{"closed"});
  });
}

void World::coordinator_step(const CoordinatorEvent& event) {
  if (const auto* said = std::get_if<AgentSaid>(&event))
    trace(fmt::format("coordinator hears {} from {}", said->message.index(), said->agent));
  for (const auto& effect : coordinator_->step(event, now_)) {
    std::visit(Overloaded{[&](const SendTo& send) { down(send.agent, send.message); },
                          [&](const CloseAgent& close) { close_by_coordinator(close.agent); },
                          [&](const Note& note) { trace("coordinator: " + note.text); }},
               effect);
  }
  if (coordinator_->restarts() > rules_.max_restarts) wrong("more restarts than allowed");
  const auto due = coordinator_->next_deadline();
  if (due != Time::max() && (!coordinator_tick_ || *coordinator_tick_ > due)) {
    coordinator_tick_ = due;
    at(due, [this, due] {
      if (coordinator_tick_ != due) return;
      coordinator_tick_.reset();
      coordinator_step(TimePassed{});
    });
  }
}

void World::member_step(std::size_t index, const MemberEvent& event) {
  auto& machine = machines_[index];
  if (!machine.member) return;
  if (machine.paused) {
    machine.missed.push_back([this, index, event, life = machine.life] {
      if (machines_[index].life == life) member_step(index, event);
    });
    return;
  }
  if (const auto* said = std::get_if<CoordinatorSaid>(&event))
    trace(fmt::format("agent {} hears {}", index, said->message.index()));
  for (const auto& effect : machine.member->step(event, now_)) carry_out(index, effect);
  if (!machine.member) return;
  const auto due = machine.member->next_deadline();
  if (due != Time::max() && (!machine.tick || *machine.tick > due || *machine.tick <= now_)) {
    machine.tick = due;
    at(due, [this, index, due, life = machine.life] {
      auto& then = machines_[index];
      if (then.life != life || then.tick != due) return;
      then.tick.reset();
      member_step(index, Tick{});
    });
  }
}

void World::carry_out(std::size_t index, const MemberEffect& effect) {
  auto& machine = machines_[index];
  const auto life = machine.life;
  const auto alive = [this, index, life] { return machines_[index].life == life && machines_[index].member; };
  std::visit(
      Overloaded{[&](const Say& say) {
                   if (machine.connection != 0) up(machine.connection, say.message);
                 },
                 [&](const OpenStore& open) {
                   const auto port = static_cast<std::uint16_t>(1024 + draw(60'000));
                   after(milliseconds(1 + draw(20)), [this, index, alive, epoch = open.epoch, port] {
                     if (alive()) member_step(index, StoreOpened{epoch, port});
                   });
                 },
                 [&](const StartWorkers& start) { start_workers(index, start); },
                 [&](const StopWorkers& stop) {
                   trace(fmt::format("agent {} stops its workers of round {}: {}", index, stop.epoch, stop.why));
                   if (options_.plant == Plant::no_fence && !stop.polite) return;
                   const auto takes = stop.polite ? draw(draw(4) == 0 ? 6000 : 300) : draw(100);
                   const auto generation = machine.workers.generation;
                   if (options_.plant == Plant::early_gone)
                     after(milliseconds(0),
                           [this, index, epoch = stop.epoch] { member_step(index, WorkersGone{epoch}); });
                   after(milliseconds(takes), [this, index, generation, epoch = stop.epoch] {
                     if (machines_[index].workers.generation == generation) workers_gone(index, epoch);
                   });
                 },
                 [&](const Reconnect&) {
                   trace(fmt::format("agent {} greets again", index));
                   if (machine.connection != 0) close_by_agent(machine.connection);
                   machine.connection = 0;
                   after(milliseconds(100), [this, index, alive] {
                     if (alive() && machines_[index].connection == 0) connect(index);
                   });
                 },
                 [&](const ShowWaiting&) {}, [&](const ShowStop&) {},
                 [&](const Exit& exit) {
                   trace(fmt::format("agent {} ends with {}: {}", index, exit.verdict.exit_code, exit.verdict.text));
                   if (machine.workers.alive) wrong("an agent ends before its workers");
                   machine.exit_code = exit.verdict.exit_code;
                   if (machine.connection != 0) close_by_agent(machine.connection);
                   machine.connection = 0;
                   // The object is in the middle of its step: it goes a moment later.
                   after(milliseconds(0), [this, index, life] {
                     if (machines_[index].life == life) machines_[index].member.reset();
                   });
                 }},
      effect);
}

void World::start_workers(std::size_t index, const StartWorkers& order) {
  auto& machine = machines_[index];
  trace(fmt::format("agent {} starts ranks {}+{} of {} in round {}", index, order.place.first_rank, order.place.slots,
                    order.place.world_size, order.place.epoch));
  machine.workers = {true, order.place, order.start, machine.workers.generation + 1};
  check_start(machine);
  after(kWorkTime + milliseconds(draw(500)), [this, index, generation = machine.workers.generation] {
    auto& then = machines_[index];
    if (then.workers.generation != generation || !then.workers.alive) return;
    member_step(index, WorkersEnded{Report{then.workers.place.epoch, true, true, {}}});
  });
}

void World::workers_gone(std::size_t index, Epoch epoch) {
  machines_[index].workers.alive = false;
  ++machines_[index].workers.generation;
  member_step(index, WorkersGone{epoch});
}

void World::worker_fails(std::size_t index) {
  auto& machine = machines_[index];
  if (!machine.member || !machine.workers.alive) return;
  trace(fmt::format("a worker of agent {} fails", index));
  Report report{machine.workers.place.epoch, false, draw(10) != 0, {}};
  report.verdict = {1 + draw(100), "a worker failed", machine.node, machine.workers.place.first_rank};
  member_step(index, WorkersEnded{report});
}

}  // namespace dtrun::simulation
