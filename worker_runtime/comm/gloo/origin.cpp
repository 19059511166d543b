#include "worker_runtime/comm/gloo/origin.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>

#include "rendezvous/base/env.hpp"
#include "rendezvous/base/error.hpp"
#include "rendezvous/base/unique_fd.hpp"

namespace dtrun::runtime::gloo {

namespace {

// Loopback differs between network namespaces, so they count as hosts.
std::string host_identity() {
  std::string boot = "?";
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::array<char, 128> space{};
  if (::readlink("/proc/self/ns/net", space.data(), space.size() - 1) <= 0) space[0] = '?';
  return fmt::format("{}/{}", boot, space.data());
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0' ? std::string(name.data())
                                                                             : std::string("?");
}

std::string numeric(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> text{};
  if (::getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) return {};
  return text.data();
}

// An IPv4 address that came through an IPv6 socket.
std::string unmapped(std::string address) {
  constexpr std::string_view kMapped = "::ffff:";
  if (address.starts_with(kMapped) && address.find('.') != std::string::npos) address.erase(0, kMapped.size());
  return address;
}

}  // namespace

bool is_ipv6(const std::string& address) { return address.find(':') != std::string::npos; }

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

std::string address_towards(const std::string& address) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address.c_str(), "9", &hints, &found) != 0) return {};  // connecting UDP sends nothing
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> release(found, ::freeaddrinfo);
  const UniqueFd socket(::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket || ::connect(socket.value(), found->ai_addr, found->ai_addrlen) != 0) return {};
  sockaddr_storage local{};
  socklen_t size = sizeof local;
  if (::getsockname(socket.value(), reinterpret_cast<sockaddr*>(&local), &size) != 0) return {};
  return numeric(reinterpret_cast<const sockaddr*>(&local), size);
}

std::string address_of_interface(const std::string& name) {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) throw_errno("comm", "getifaddrs");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> release(first, ::freeifaddrs);
  std::set<std::string> names;
  std::string ipv6;
  for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr) continue;
    const int family = at->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    names.insert(at->ifa_name);
    if (name != at->ifa_name) continue;
    if (family == AF_INET) return numeric(at->ifa_addr, sizeof(sockaddr_in));
    if (ipv6.empty()) ipv6 = numeric(at->ifa_addr, sizeof(sockaddr_in6));
  }
  if (!ipv6.empty()) return ipv6;
  throw UsageError("comm", fmt::format("GLOO_SOCKET_IFNAME is \"{}\", expected an interface with an address: {}", name,
                                       fmt::join(names, ", ")));
}

Origin Origin::here(const std::string& towards_store) {
  Origin result{.host = host_identity(),
                .host_name = gloo::host_name(),
                .pid = ::getpid(),
                .address = towards_store.empty() ? "127.0.0.1" : unmapped(towards_store)};
  // PyTorch takes a list and uses all of them in turn; one is enough here.
  if (const auto names = env::get("GLOO_SOCKET_IFNAME"); names && !names->empty()) {
    result.address = address_of_interface(names->substr(0, names->find(',')));
    result.chosen = true;
  }
  return result;
}

std::string Origin::encode() const {
  return fmt::format("dtrun-gloo-1 {} {} {} {} {}", host, host_name, pid, address, chosen ? 1 : 0);
}

Origin Origin::decode(std::string_view text) {
  std::istringstream in{std::string(text)};
  std::string kind;
  Origin result;
  in >> kind >> result.host >> result.host_name >> result.pid >> result.address >> result.chosen;
  if (!in || kind != "dtrun-gloo-1") {
    throw CommError("comm", fmt::format("address of a rank: \"{}\", expected dtrun-gloo-1 ...", text.substr(0, 200)));
  }
  return result;
}

std::string choose_address(std::span<const Origin> origins, int rank,
                           const std::function<std::string(const std::string&)>& towards) {
  const Origin& own = origins[static_cast<std::size_t>(rank)];
  const auto elsewhere = [&own](const Origin& other) { return other.host != own.host; };
  const bool reachable = !is_loopback(own.address);
  // All ranks settle on the family of the first address that is not loopback.
  const auto reference =
      std::find_if(origins.begin(), origins.end(), [](const Origin& other) { return !is_loopback(other.address); });
  if (std::none_of(origins.begin(), origins.end(), elsewhere)) {
    // Mixed on one host: loopback would be another family, or not reach an address that only the network knows.
    if (reference == origins.end() || reachable || own.chosen) return own.address;
    return reference->address;
  }
  if (own.chosen && !reachable) {
    throw CommError("comm", fmt::format("rank {} on {}: GLOO_SOCKET_IFNAME names an interface with the address {}, "
                                        "which the ranks on other hosts cannot reach",
                                        rank, own.host_name, own.address));
  }
  if (own.chosen) return own.address;
  if (reachable && is_ipv6(own.address) == is_ipv6(reference->address)) return own.address;
  const auto peer = std::find_if(origins.begin(), origins.end(), [&](const Origin& other) {
    return elsewhere(other) && !is_loopback(other.address) && is_ipv6(other.address) == is_ipv6(reference->address);
  });
  const std::string found = peer == origins.end() ? std::string() : towards(peer->address);
  if (!found.empty() && !is_loopback(found)) return found;
  throw CommError("comm", fmt::format("rank {} on {} has no address that ranks on other hosts can reach ({} leads "
                                      "nowhere else); set GLOO_SOCKET_IFNAME to the interface to use",
                                      rank, own.host_name, own.address));
}

}  // namespace dtrun::runtime::gloo
