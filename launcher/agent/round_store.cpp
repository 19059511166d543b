#include "launcher/agent/round_store.hpp"

#include "rendezvous/server/store_server.hpp"

namespace dtrun::launcher {

RoundStore::RoundStore(boost::asio::io_context& io) : io_(io) {}
RoundStore::~RoundStore() = default;

int RoundStore::open(const std::string& host, std::uint16_t port) {
  rendezvous::StoreServerOptions options;
  options.host = host;
  options.port = port;
  if (port != 0) server_.reset();  // the port must be free again
  // Otherwise the new one is opened first: two attempts cannot have the same port.
  auto fresh = std::make_unique<rendezvous::StoreServer>(io_, options);
  server_ = std::move(fresh);
  return server_->port();
}

void RoundStore::close() { server_.reset(); }

}  // namespace dtrun::launcher
