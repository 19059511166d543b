#include "rendezvous/base/listener.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>

#include "rendezvous/base/endpoint.hpp"
#include "rendezvous/base/error.hpp"
#include "rendezvous/base/port_holder.hpp"

namespace dtrun {
namespace {

struct FreeAddress {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddress>;

Addresses resolve(const std::string& host, std::uint16_t port, std::string_view area) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_NUMERICHOST;
  addrinfo* found = nullptr;
  const auto service = std::to_string(port);
  // Numeric addresses and localhost never touch a name server.
  const auto* name = host == "localhost" ? "127.0.0.1" : host.c_str();
  int error = ::getaddrinfo(name, service.c_str(), &hints, &found);
  if (error == EAI_NONAME) {
    hints.ai_flags = AI_NUMERICSERV;
    error = ::getaddrinfo(name, service.c_str(), &hints, &found);
  }
  if (error != 0) {
    throw UsageError(area, fmt::format("cannot listen on \"{}\": {}, expected an address of this machine", host,
                                       ::gai_strerror(error)));
  }
  return Addresses(found);
}

void set_option(int fd, int level, int name, int value) { ::setsockopt(fd, level, name, &value, sizeof value); }

// `error` is errno of bind or listen.
[[noreturn]] void refuse(const Endpoint& wanted, std::string_view area, int error) {
  const auto name = wanted.to_string();
  if (error == EADDRNOTAVAIL)
    throw UsageError(area, fmt::format("cannot listen on {}: not an address of this machine", name));
  const auto holder = error == EADDRINUSE ? port_holder(wanted.port) : std::string();
  const auto who = holder.empty() ? std::string() : fmt::format(", {} is held by {}", wanted.port, holder);
  throw_errno(area, fmt::format("cannot listen on {}{}", name, who), error);
}

void describe(Listener& listener, std::string_view area) {
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (::getsockname(listener.fd.value(), reinterpret_cast<sockaddr*>(&bound), &size) != 0)
    throw_errno(area, "getsockname");
  char text[INET6_ADDRSTRLEN] = "";
  if (bound.ss_family == AF_INET6) {
    const auto& address = reinterpret_cast<const sockaddr_in6&>(bound);
    ::inet_ntop(AF_INET6, &address.sin6_addr, text, sizeof text);
    listener.port = ntohs(address.sin6_port);
  } else {
    const auto& address = reinterpret_cast<const sockaddr_in&>(bound);
    ::inet_ntop(AF_INET, &address.sin_addr, text, sizeof text);
    listener.port = ntohs(address.sin_port);
  }
  listener.host = text;
}

}  // namespace

Listener listen_on(const std::string& host, std::uint16_t port, std::string_view area) {
  const auto addresses = resolve(host, port, area);
  const Endpoint wanted{host, port};
  Listener listener;
  listener.fd.reset(::socket(addresses->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!listener.fd) refuse(wanted, area, errno);
  const int fd = listener.fd.value();
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  // A client whose machine vanished is noticed after about two minutes.
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 60);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 6);
  if (addresses->ai_family == AF_INET6) set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  // The kernel cuts the backlog to net.core.somaxconn.
  if (::bind(fd, addresses->ai_addr, addresses->ai_addrlen) != 0 || ::listen(fd, 65535) != 0)
    refuse(wanted, area, errno);
  describe(listener, area);
  return listener;
}

}  // namespace dtrun
