// What goes wrong in the simulated world, and what must hold all the same.
#include <fmt/format.h>

#include <algorithm>

#include "tests/simulation/membership_world.hpp"

namespace dtrun::simulation {

using namespace rendezvous;

void World::plan_faults() {
  const int faults = draw(7);
  for (int i = 0; i < faults; ++i) {
    const auto index = static_cast<std::size_t>(draw(static_cast<int>(machines_.size())));
    after(milliseconds(draw(28'000)), [this, index] {
      if (!mended_) fault(index);
    });
  }
}

void World::fault(std::size_t index) {
  switch (draw(6)) {
    case 0:
    case 1:
      return worker_fails(index);
    case 2:
      crash(index);
      if (draw(3) != 0) after(milliseconds(draw(6000)), [this, index] { start_agent(index); });
      return;
    case 3:
      return pause(index, milliseconds(draw(9000)));
    case 4:
      return cut(index, milliseconds(draw(12'000)));
    case 5:
      trace(fmt::format("agent {} is told to leave", index));
      member_step(index, LeaveWanted{{143, "stopped by SIGTERM", machines_[index].node, -1}});
      if (draw(2) == 0) after(milliseconds(draw(4000)), [this, index] { start_agent(index); });
      return;
    default:
      return;
  }
}

void World::start_agent(std::size_t index) {
  auto& machine = machines_[index];
  if (machine.member || coordinator_->over()) return;
  trace(fmt::format("agent {} ({}, {} slots) starts", index, machine.node, machine.slots));
  ++machine.life;
  machine.connection = 0;
  machine.paused = false;
  machine.tick.reset();
  machine.missed.clear();
  machine.exit_code.reset();
  Hello hello;
  hello.job = rules_.job;
  hello.node = machine.node;
  hello.address = fmt::format("10.0.0.{}", index);
  hello.slots = machine.slots;
  if (ranked_) hello.node_rank = static_cast<int>(index);
  machine.member.emplace(hello);
  connect(index);
}

// kill -9: the guardian kills the workers, the kernel closes the connection.
void World::crash(std::size_t index) {
  auto& machine = machines_[index];
  if (!machine.member) return;
  trace(fmt::format("agent {} is killed", index));
  machine.member.reset();
  ++machine.life;
  machine.paused = false;
  machine.workers.alive = false;
  ++machine.workers.generation;
  if (machine.connection != 0) close_by_agent(machine.connection);
  machine.connection = 0;
}

void World::pause(std::size_t index, milliseconds length) {
  auto& machine = machines_[index];
  if (!machine.member || machine.paused) return;
  trace(fmt::format("agent {} is stopped for {} ms", index, length.count()));
  machine.paused = true;
  after(length, [this, index, life = machine.life] {
    auto& then = machines_[index];
    if (then.life != life || !then.paused) return;
    then.paused = false;
    then.excused_until = now_ + milliseconds(150);
    trace(fmt::format("agent {} goes on", index));
    const auto missed = std::exchange(then.missed, {});
    member_step(index, Tick{});  // timers are looked at first
    for (const auto& what : missed) what();
  });
}

void World::cut(std::size_t index, milliseconds length) {
  auto& machine = machines_[index];
  if (machine.cut) return;
  trace(fmt::format("machine {} is cut off for {} ms", index, length.count()));
  machine.cut = true;
  after(length, [this, index] {
    machines_[index].cut = false;
    trace(fmt::format("machine {} is connected again", index));
    // A connection of which one end is closed is reset by the first packet.
    for (auto& [id, connection] : connections_) {
      if (connection.machine != index || connection.coordinator_end == connection.agent_end) continue;
      if (connection.coordinator_end) {
        connection.coordinator_end = false;
        coordinator_step(AgentGone{id});
      } else {
        connection.agent_end = false;
        if (machines_[index].connection == id) {
          machines_[index].connection = 0;
          member_step(index, ConnectionLost{"reset"});
        }
      }
    }
  });
}

// From now on nothing happens to the job; machines that are down come back.
void World::mend() {
  mended_ = true;
  trace("no more faults");
  for (std::size_t i = 0; i < machines_.size(); ++i) {
    after(milliseconds(draw(5000)), [this, i] { start_agent(i); });
    after(milliseconds(15'000), [this, i] { start_agent(i); });  // one that was told to leave while it was stopped
  }
}

void World::check_start(const Machine& machine) {
  const auto& place = machine.workers.place;
  const auto store = fmt::format("{}:{}", machine.workers.start.store_host, machine.workers.start.store_port);
  for (const auto& other : machines_) {
    // A stopped process cannot stop its workers; it does so as soon as it goes on.
    if (&other == &machine || !other.workers.alive || other.paused || now_ < other.excused_until) continue;
    if (other.workers.place.epoch != place.epoch)
      wrong(fmt::format("rounds {} and {} run at the same time", other.workers.place.epoch, place.epoch));
  }
  auto [entry, first] = rounds_.try_emplace(place.epoch);
  auto& round = entry->second;
  if (first) round = {place.world_size, place.group_world_size, place.restart_count, store, {}, {}};
  if (round.world_size != place.world_size || round.group_world_size != place.group_world_size ||
      round.restart_count != place.restart_count || round.store != store)
    wrong(fmt::format("round {} is not the same for all its agents", place.epoch));
  if (place.slots != machine.slots) wrong("an agent got another number of workers than it offered");
  if (!round.groups.insert(place.group_rank).second || place.group_rank >= place.group_world_size)
    wrong(fmt::format("round {}: node rank {} twice or out of range", place.epoch, place.group_rank));
  for (int rank = place.first_rank; rank < place.first_rank + place.slots; ++rank) {
    if (!round.ranks.insert(rank).second || rank >= place.world_size)
      wrong(fmt::format("round {}: rank {} twice or out of range", place.epoch, rank));
  }
  if (rounds_.rbegin()->first > place.epoch) wrong("a round starts after its successor");
  if (place.group_world_size < rules_.min_nodes || place.group_world_size > rules_.max_nodes)
    wrong(fmt::format("round {} has {} nodes", place.epoch, place.group_world_size));
}

void World::check_end() {
  if (!coordinator_->over()) return wrong("the job does not end");
  for (const auto& machine : machines_) {
    if (machine.workers.alive) wrong("workers are left");
    if (machine.member && !machine.member->exited()) wrong("an agent does not end");
  }
  const auto& verdict = coordinator_->verdict();
  if (verdict.exit_code == 0) {
    const auto& last = rounds_.rbegin()->second;
    if (static_cast<int>(last.ranks.size()) != last.world_size) wrong("success without all ranks");
  }
}

}  // namespace dtrun::simulation
