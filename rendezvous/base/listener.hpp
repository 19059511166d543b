// A listening socket of a server: of the store, of the coordinator.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "rendezvous/base/unique_fd.hpp"

namespace dtrun {

struct Listener {
  UniqueFd fd;
  // As bound, numeric.
  std::string host;
  std::uint16_t port = 0;
};

// Binds exactly `host` (a numeric address, or a name whose first address counts) and listens, non-blocking. Accepted
// sockets inherit TCP_NODELAY and keep-alive. Throws UsageError or SystemError of `area`, naming host and
// port, and the holder of a port that is taken.
Listener listen_on(const std::string& host, std::uint16_t port, std::string_view area);

}  // namespace dtrun
