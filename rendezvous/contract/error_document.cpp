#include "rendezvous/contract/error_document.hpp"

#include <nlohmann/json.hpp>

namespace dtrun {

std::string to_json(const ErrorDocument& document) {
  using nlohmann::ordered_json;
  ordered_json result;
  auto& message = result["message"];
  message["message"] = document.kind + ": " + document.text;
  auto& extra = message["extraInfo"];
  extra["py_callstack"] = document.text;
  extra["timestamp"] = std::to_string(document.timestamp);
  if (document.blames_rank) extra["blames_rank"] = *document.blames_rank;
  if (!document.retry) extra["retry"] = false;
  return result.dump(-1, ' ', true, ordered_json::error_handler_t::replace);
}

}  // namespace dtrun
