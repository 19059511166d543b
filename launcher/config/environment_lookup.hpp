#pragma once

#include <functional>
#include <optional>
#include <string>

namespace dtrun::launcher {

// Where parsers read variables from: the process's environment, or a table in tests.
using EnvironmentLookup = std::function<std::optional<std::string>(const char* name)>;

}  // namespace dtrun::launcher
