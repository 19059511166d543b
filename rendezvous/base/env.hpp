// Reading the environment. The only place that calls getenv.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dtrun::env {

// The value, or nothing when the variable is not set. Set but empty is an empty string.
std::optional<std::string> get(const char* name);
// The value as a decimal integer. Throws UsageError naming the variable when it is set and is not one, or out of [min, max].
std::optional<std::int64_t> get_int(const char* name, std::int64_t min, std::int64_t max);

// A whole decimal integer with optional sign; nothing else around it.
std::optional<std::int64_t> parse_int(std::string_view text);
std::string lower(std::string_view text);

}  // namespace dtrun::env
