// Names to addresses, within a deadline.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "rendezvous/base/clock.hpp"

namespace dtrun::rendezvous {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

struct Resolved {
  std::vector<SocketAddress> addresses;
  // Why there are none.
  std::string failure;
  // The name may exist a moment later (no answer, or not known yet); otherwise it never will.
  bool worth_retrying = false;
};

// Numeric addresses and localhost are answered at once. Everything else is asked of the system on a thread of its own,
// since getaddrinfo takes no deadline: when time runs out, that thread is left to end by itself.
Resolved resolve(const std::string& host, std::uint16_t port, Deadline deadline);

}  // namespace dtrun::rendezvous
