#include "rendezvous/server/peer_log.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "rendezvous/base/clock.hpp"
#include "rendezvous/base/endpoint.hpp"
#include "rendezvous/base/log.hpp"

namespace dtrun::rendezvous {
namespace {

std::string peer_name(int socket) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return "(gone)";
  char text[INET6_ADDRSTRLEN] = "";
  if (peer.ss_family == AF_INET6) {
    const auto& address = reinterpret_cast<const sockaddr_in6&>(peer);
    ::inet_ntop(AF_INET6, &address.sin6_addr, text, sizeof text);
    return Endpoint{text, ntohs(address.sin6_port)}.to_string();
  }
  const auto& address = reinterpret_cast<const sockaddr_in&>(peer);
  ::inet_ntop(AF_INET, &address.sin_addr, text, sizeof text);
  return Endpoint{text, ntohs(address.sin_port)}.to_string();
}

}  // namespace

void log_closed_client(int socket, std::string_view why) {
  // Per thread: a server has one, and tests run several servers.
  thread_local Clock::time_point last;
  thread_local std::size_t unsaid = 0;
  if (!log::enabled(log::Level::warning)) return;
  const auto now = Clock::now();
  if (last != Clock::time_point() && now - last < std::chrono::seconds(1)) {
    ++unsaid;
    return;
  }
  last = now;
  if (unsaid == 0) {
    log::warning("store", "closed the client {}: {}", peer_name(socket), why);
  } else {
    log::warning("store", "closed the client {}: {} (and {} more clients since the last such line)", peer_name(socket),
                 why, unsaid);
  }
  unsaid = 0;
}

}  // namespace dtrun::rendezvous
