// Where a rank runs and under which address others reach it.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace dtrun::runtime::gloo {

struct Origin {
  std::string host;  // tells machines, and network namespaces of one machine, apart
  std::string host_name;
  int pid = 0;
  int rank = 0;         // in the group that all others were split from; not encoded
  std::string address;  // numeric; the one it would like to be reached under
  bool chosen = false;  // by the user: stays as it is

  // `towards_store`: this machine's address on the way to the store, numeric, or empty. GLOO_SOCKET_IFNAME goes before
  // it. Throws UsageError when that names no interface with an address.
  static Origin here(const std::string& towards_store);
  std::string encode() const;
  // Throws CommError.
  static Origin decode(std::string_view text);
};

bool is_loopback(const std::string& address);
bool is_ipv6(const std::string& address);
// This machine's address on the way to `address`, numeric; empty when there is no way. Sends nothing.
std::string address_towards(const std::string& address);
// Throws UsageError naming the interfaces that there are.
std::string address_of_interface(const std::string& name);

// The address that `rank` uses: the one it likes, but never loopback when the ranks are on several hosts, and of the
// family that the others use. Then it is the one towards the first rank with an address that can be reached, as
// `towards` says. Throws CommError when there is none.
std::string choose_address(std::span<const Origin> origins, int rank,
                           const std::function<std::string(const std::string&)>& towards = address_towards);

}  // namespace dtrun::runtime::gloo
