#include "launcher/logs/console_text.hpp"

#include <array>

namespace dtrun::launcher {
namespace {

constexpr std::string_view kReset = "\x1b[0m";

}  // namespace

std::string console_prefix(std::string_view prefix, int color_index, bool color) {
  // Easy to tell apart on dark and on light ground.
  constexpr std::array<std::string_view, 6> kColors = {"\x1b[36m", "\x1b[32m", "\x1b[33m",
                                                       "\x1b[35m", "\x1b[34m", "\x1b[31m"};
  auto text = escaped(prefix);
  if (!color || text.empty()) return text;
  const auto index = static_cast<std::size_t>(color_index < 0 ? 0 : color_index) % kColors.size();
  return std::string(kColors[index]) + text + std::string(kReset);
}

void append_console_line(std::string& to, std::string_view prefix, std::string_view line, bool terminal) {
  to += prefix;
  if (!terminal) {
    to += line;
  } else if (append_escaped(to, line, true)) {
    to += kReset;
  }
  to += '\n';
}

}  // namespace dtrun::launcher
