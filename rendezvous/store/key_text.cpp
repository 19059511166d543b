#include "rendezvous/store/key_text.hpp"

#include <fmt/format.h>

namespace dtrun::rendezvous {

std::string quoted(std::string_view text) {
  constexpr std::size_t kShown = 120;
  std::string out = "\"";
  for (const char c : text.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f || c == '"' || c == '\\') {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + (text.size() > kShown ? "...\"" : "\"");
}

std::string quoted_list(std::span<const std::string> keys) {
  constexpr std::size_t kShown = 3;
  std::string out;
  for (std::size_t i = 0; i < keys.size() && i < kShown; ++i) out += (i ? ", " : "") + quoted(keys[i]);
  if (keys.size() > kShown) out += fmt::format(" and {} more", keys.size() - kShown);
  return out;
}

}  // namespace dtrun::rendezvous
