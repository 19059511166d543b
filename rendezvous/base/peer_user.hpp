// Which user is at the other end of a TCP connection within this machine.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace dtrun {

// One end of a TCP connection, numeric.
struct SocketEnd {
  std::string host;
  std::uint16_t port = 0;
};

// The owner of the socket whose own end is `peer` and whose other end is `own`, as the kernel tells (sock_diag, some
// tens of microseconds). Nothing when it is not of this machine (network namespace), gone, or the kernel does not say.
std::optional<uid_t> user_of_peer(const SocketEnd& own, const SocketEnd& peer) noexcept;

}  // namespace dtrun
