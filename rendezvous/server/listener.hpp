// The listening socket of the store server.
#pragma once

#include <cstdint>
#include <string>

#include "rendezvous/base/unique_fd.hpp"

namespace dtrun::rendezvous {

struct Listener {
  UniqueFd fd;
  // As bound, numeric.
  std::string host;
  std::uint16_t port = 0;
};

// Binds exactly `host` (a numeric address, or a name whose first address counts) and listens, non-blocking. Accepted
// sockets inherit TCP_NODELAY and keep-alive. Throws UsageError or SystemError, naming host and port.
Listener listen_on(const std::string& host, std::uint16_t port);

}  // namespace dtrun::rendezvous
