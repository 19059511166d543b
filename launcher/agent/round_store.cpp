#include "launcher/agent/round_store.hpp"

#include "launcher/agent/free_port.hpp"
#include "rendezvous/server/store_server.hpp"

namespace dtrun::launcher {

RoundStore::RoundStore(boost::asio::io_context& io, SingleNodeStore place) : io_(io), place_(std::move(place)) {}
RoundStore::~RoundStore() = default;

int RoundStore::open() {
  if (!place_.agent_store) return free_port(place_.host);
  rendezvous::StoreServerOptions options;
  options.host = place_.host;
  options.port = place_.port;
  if (place_.fixed_port) server_.reset();  // the port must be free again
  // Otherwise the new one is opened first: two attempts cannot have the same port.
  auto fresh = std::make_unique<rendezvous::StoreServer>(io_, options);
  server_ = std::move(fresh);
  return server_->port();
}

}  // namespace dtrun::launcher
