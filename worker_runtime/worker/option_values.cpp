// The little languages inside option values.
#include <fmt/format.h>

#include "rendezvous/base/env.hpp"
#include "rendezvous/base/error.hpp"
#include "worker_runtime/worker/command_line.hpp"

namespace dtrun::runtime {

std::int64_t parse_size(std::string_view label, std::string_view text) {
  auto digits = text;
  int shift = 0;
  if (!digits.empty()) {
    switch (digits.back()) {
      case 'k':
      case 'K':
        shift = 10;
        break;
      case 'm':
      case 'M':
        shift = 20;
        break;
      case 'g':
      case 'G':
        shift = 30;
        break;
      default:
        break;
    }
  }
  if (shift != 0) digits.remove_suffix(1);
  const auto value = env::parse_int(digits);
  if (!value || *value < 1 || *value > (std::int64_t{1} << 40) >> shift) {
    throw UsageError("worker", fmt::format("{} is \"{}\", expected a size such as 4096, 64K or 1G", label, text));
  }
  return *value << shift;
}

std::int64_t parse_bytes(std::string_view label, std::string_view text) {
  if (text.ends_with("iB")) return parse_size(label, text.substr(0, text.size() - 2));
  if (!text.ends_with("B")) return parse_size(label, text);
  constexpr std::int64_t kMost = std::int64_t{1} << 50;
  auto digits = text.substr(0, text.size() - 1);
  std::int64_t factor = 1;
  for (const char unit : {'K', 'M', 'G', 'T'}) {
    factor *= 1000;
    if (!digits.ends_with(unit)) continue;
    digits.remove_suffix(1);
    const auto value = env::parse_int(digits);
    if (value && *value >= 1 && *value <= kMost / factor) return *value * factor;
    break;
  }
  throw UsageError("worker", fmt::format("{} is \"{}\", expected a size such as 500MB, 5GB or 5GiB", label, text));
}

}  // namespace dtrun::runtime
