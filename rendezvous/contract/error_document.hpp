// The error file of torch's @record, which TORCHELASTIC_ERROR_FILE names: how one process tells the one that started it
// why it failed. Workers write it for the launcher, the launcher for whoever started it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dtrun {

struct ErrorDocument {
  std::string kind;  // "CommError"
  std::string text;
  long long timestamp = 0;  // epoch seconds
  // Our own additions:
  std::optional<int> blames_rank;  // the rank that this one waited for in vain
  bool retry = true;               // false: the same words fail the same way, another attempt cannot help
};

// {"message": {"message": "<kind>: <text>", "extraInfo": {"py_callstack": <text>, "timestamp": "<seconds>"}}}, ASCII,
// one line.
std::string to_json(const ErrorDocument& document);

}  // namespace dtrun
