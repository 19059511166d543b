// Keys in messages: they come from peers, so they are escaped before they reach a terminal or a log.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace dtrun::rendezvous {

// In double quotes; quotes, backslashes, control and non-ASCII bytes as \xNN; cut after 120 bytes.
std::string quoted(std::string_view text);
// "a", "b", "c" and 5 more
std::string quoted_list(std::span<const std::string> keys);

}  // namespace dtrun::rendezvous
