// host[:port] as torchrun writes it: "host", "host:29400", "[::1]:29400", "[::1]".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dtrun {

struct Endpoint {
  std::string host;
  std::uint16_t port = 0;

  // "host:port"; an IPv6 host gets its brackets back.
  std::string to_string() const;
  bool operator==(const Endpoint&) const = default;
};

// Blank around the text is dropped; empty text is localhost. Throws UsageError for a port outside 0..65535 and for a
// host with characters other than letters, digits, '_', '.', ':' and '-'.
Endpoint parse_endpoint(std::string_view text, std::uint16_t default_port);

// True for localhost, 127.0.0.0/8 (also IPv4-mapped) and ::1 as written (no name is resolved).
bool is_loopback_host(std::string_view host);

}  // namespace dtrun
