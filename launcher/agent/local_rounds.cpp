#include "launcher/agent/local_rounds.hpp"

#include "launcher/agent/free_port.hpp"

namespace dtrun::launcher {

void LocalRounds::again(int restarts) {
  const auto& store = plan_.store;
  Round round;
  round.number = round.restarts = restarts;
  round.world_size = round.role_world_size = plan_.workers;
  round.master_addr = store.host;
  round.agent_store = store.agent_store;
  round.master_port = store.agent_store ? store_.open(store.host, store.port) : free_port(store.host);
  listener_.start(round);
}

}  // namespace dtrun::launcher
