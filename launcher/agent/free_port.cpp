#include "launcher/agent/free_port.hpp"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>

#include "rendezvous/base/error.hpp"
#include "rendezvous/base/unique_fd.hpp"

namespace dtrun::launcher {

int free_port(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), "0", &hints, &found);
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, [](addrinfo* info) {
    if (info != nullptr) ::freeaddrinfo(info);
  });
  for (const auto* info = error == 0 ? found : nullptr; info != nullptr; info = info->ai_next) {
    const UniqueFd socket(::socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!socket || ::bind(socket.value(), info->ai_addr, info->ai_addrlen) != 0) continue;
    sockaddr_storage bound{};
    socklen_t size = sizeof bound;
    if (::getsockname(socket.value(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) continue;
    return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(bound).sin_port);
  }
  throw UsageError("launcher",
                   fmt::format("no port can be opened on \"{}\", expected an address of this machine", host));
}

}  // namespace dtrun::launcher
