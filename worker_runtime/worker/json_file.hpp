// JSON files that people write: read whole, with errors that say where.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace dtrun::runtime {

// Parses a regular file. Throws UsageError that begins with `source`, such as "--config run.json".
nlohmann::json read_json_file(const std::string& path, std::string_view source);

// "line 3, column 7" of the byte number `offset`, counted from 1.
std::string place_in(std::string_view text, std::size_t offset);

}  // namespace dtrun::runtime
