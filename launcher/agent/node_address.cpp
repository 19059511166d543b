#include "launcher/agent/node_address.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <memory>

#include "rendezvous/base/error.hpp"

namespace dtrun::launcher {
namespace {

std::string text_of(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET)
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  if (address->sa_family == AF_INET6) {
    const auto& ipv6 = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    if (!IN6_IS_ADDR_LINKLOCAL(&ipv6)) ::inet_ntop(AF_INET6, &ipv6, text, sizeof text);
  }
  return text;
}

std::string address_of_interface(const std::string& name) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) throw_errno("launcher", "getifaddrs");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> list(all, ::freeifaddrs);
  bool known = false;
  std::string ipv6;
  for (const auto* entry = all; entry != nullptr; entry = entry->ifa_next) {
    if (name != entry->ifa_name) continue;
    known = true;
    const auto text = entry->ifa_addr != nullptr ? text_of(entry->ifa_addr) : std::string();
    if (text.empty()) continue;
    if (entry->ifa_addr->sa_family == AF_INET) return text;
    if (ipv6.empty()) ipv6 = text;
  }
  if (!ipv6.empty()) return ipv6;
  throw UsageError("launcher", fmt::format("--interface is \"{}\", {}", name,
                                           known ? "which has no address" : "and this machine has none of that name"));
}

}  // namespace

std::string chosen_address(const RendezvousOptions& options) {
  if (options.local_addr) return *options.local_addr;
  return options.interface ? address_of_interface(*options.interface) : std::string();
}

}  // namespace dtrun::launcher
