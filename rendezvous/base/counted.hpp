// A number of things as text of messages: "1 rank", "4 ranks", "1 process", "0 processes", "2 copies".
#pragma once

#include <concepts>
#include <string>
#include <string_view>

namespace dtrun {

// `noun` in the singular; "s", "es" and "ies" are made as in English, nothing irregular.
inline std::string counted(std::integral auto count, std::string_view noun) {
  std::string text = std::to_string(count) + ' ';
  text += noun;
  if (count == 1) return text;
  const auto ends = [&](std::string_view end) { return noun.ends_with(end); };
  if (ends("s") || ends("x") || (ends("ch") && !ends("och")) || ends("sh")) return text + "es";
  const char before = noun.size() > 1 ? noun[noun.size() - 2] : 'a';
  if (!ends("y") || std::string_view("aeiou").find(before) != std::string_view::npos) return text + 's';
  text.pop_back();
  return text + "ies";
}

}  // namespace dtrun
