// How one line of a worker looks on the console. Pure text.
#pragma once

#include <string>
#include <string_view>

namespace dtrun::launcher {

// Adds `text` with everything escaped as \xNN that could move the cursor, forge a line or switch the terminal's state:
// control characters other than tab, escape sequences, C1 controls, invalid UTF-8. Colours ("ESC [ ... m") stay when
// `keep_colors`; returns whether there were any.
bool append_escaped(std::string& to, std::string_view text, bool keep_colors);
std::string escaped(std::string_view text);

// What is put in front of the lines of a rank: control characters escaped, in a colour of its own on a terminal.
std::string console_prefix(std::string_view prefix, int color_index, bool color);

// prefix + line + newline. On a terminal the line is escaped as above and its colours end with it; elsewhere its bytes
// are unchanged.
void append_console_line(std::string& to, std::string_view prefix, std::string_view line, bool terminal);

}  // namespace dtrun::launcher
