#include "rendezvous/base/escaped.hpp"

#include <algorithm>
#include <cstdint>

namespace dtrun {
namespace {

bool is_plain(std::uint8_t byte) { return (byte >= ' ' && byte < 0x7f) || byte == '\t'; }

// Length of the colour sequence at the start of `text`, 0 when there is none.
std::size_t color_sequence(std::string_view text) {
  if (!text.starts_with("\x1b[")) return 0;
  const auto end = text.find_first_not_of("0123456789;:", 2);
  return end != std::string_view::npos && text[end] == 'm' ? end + 1 : 0;
}

// Length of the valid, printable UTF-8 sequence of several bytes at the start of `text`, 0 when it is invalid or a C1
// control.
std::size_t multibyte_sequence(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const auto first = byte(0);
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const auto second = byte(1);
  const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool outside = (first == 0xed && second >= 0xa0) || (first == 0xf4 && second >= 0x90);
  const bool control = first == 0xc2 && second < 0xa0;
  // U+202A..202E and U+2066..2069 turn the direction of text around.
  const bool direction = first == 0xe2 && ((second == 0x80 && byte(2) >= 0xaa && byte(2) <= 0xae) ||
                                           (second == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9));
  return overlong || outside || control || direction ? 0 : length;
}

void append_hex(std::string& to, char c) {
  constexpr auto kDigits = "0123456789abcdef";
  const auto value = static_cast<std::uint8_t>(c);
  to += "\\x";
  to += kDigits[value >> 4];
  to += kDigits[value & 15];
}

}  // namespace

bool append_escaped(std::string& to, std::string_view text, bool keep_colors) {
  bool colors = false;
  while (!text.empty()) {
    const auto plain = static_cast<std::size_t>(
        std::find_if(text.begin(), text.end(), [](char c) { return !is_plain(static_cast<std::uint8_t>(c)); }) -
        text.begin());
    to.append(text.substr(0, plain));
    text.remove_prefix(plain);
    if (text.empty()) break;
    std::size_t length = 0;
    if (text.front() == '\x1b') {
      length = keep_colors ? color_sequence(text) : 0;
      colors |= length > 0;
    } else if (static_cast<std::uint8_t>(text.front()) >= 0x80) {
      length = multibyte_sequence(text);
    }
    if (length == 0) {
      append_hex(to, text.front());
      length = 1;
    } else {
      to.append(text.substr(0, length));
    }
    text.remove_prefix(length);
  }
  return colors;
}

std::string escaped(std::string_view text) {
  std::string result;
  append_escaped(result, text, false);
  return result;
}

}  // namespace dtrun
