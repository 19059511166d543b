#include "rendezvous/base/endpoint.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "rendezvous/base/env.hpp"
#include "rendezvous/base/error.hpp"

namespace dtrun {
namespace {

std::string_view strip(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n\v\f";
  const auto begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

bool is_host_character(unsigned char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '.' ||
         c == ':' || c == '-' || c >= 0x80;
}

}  // namespace

std::string Endpoint::to_string() const {
  return host.find(':') != std::string::npos ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

Endpoint parse_endpoint(std::string_view text, std::uint16_t default_port) {
  const auto given = strip(text);
  if (given.empty()) return {"localhost", default_port};
  Endpoint result{std::string(given), default_port};
  const bool bare_v6 = given.front() == '[' && given.back() == ']';
  const auto colon = bare_v6 ? std::string_view::npos : given.rfind(':');
  if (colon != std::string_view::npos) {
    const auto port_text = given.substr(colon + 1);
    const bool digits = !port_text.empty() && port_text.size() <= 5 &&
                        std::all_of(port_text.begin(), port_text.end(), [](char c) { return c >= '0' && c <= '9'; });
    const auto port = digits ? env::parse_int(port_text) : std::nullopt;
    if (!port || *port > 65535) {
      throw UsageError("endpoint",
                       fmt::format("port \"{}\" in \"{}\", expected a number from 0 to 65535", port_text, given));
    }
    result.port = static_cast<std::uint16_t>(*port);
    result.host = given.substr(0, colon);
  }
  if (result.host.size() >= 2 && result.host.front() == '[' && result.host.back() == ']') {
    result.host = result.host.substr(1, result.host.size() - 2);
  }
  if (result.host.empty() || !std::all_of(result.host.begin(), result.host.end(), is_host_character)) {
    throw UsageError("endpoint",
                     fmt::format("host \"{}\" in \"{}\", expected a host name or address", result.host, given));
  }
  return result;
}

bool is_loopback_host(std::string_view host) {
  if (host.starts_with("::ffff:")) host.remove_prefix(7);
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

}  // namespace dtrun
