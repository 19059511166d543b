#include "rendezvous/base/env.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>

#include "rendezvous/base/error.hpp"

namespace dtrun::env {

std::optional<std::string> get(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

std::optional<std::int64_t> get_int(const char* name, std::int64_t min, std::int64_t max) {
  const auto text = get(name);
  if (!text) return std::nullopt;
  const auto value = parse_int(*text);
  if (!value || *value < min || *value > max) {
    throw UsageError("env", fmt::format("{} is \"{}\", expected an integer from {} to {}", name, *text, min, max));
  }
  return value;
}

std::optional<std::int64_t> parse_int(std::string_view text) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

}  // namespace dtrun::env
