// How one line of a worker looks on the console. Pure text.
#pragma once

#include <string>
#include <string_view>

#include "rendezvous/base/escaped.hpp"  // how workers' text is shown, everywhere

namespace dtrun::launcher {

// What is put in front of the lines of a rank: control characters escaped, in a colour of its own on a terminal.
std::string console_prefix(std::string_view prefix, int color_index, bool color);

// prefix + line + newline. On a terminal the line is escaped as above and its colours end with it; elsewhere its bytes
// are unchanged.
void append_console_line(std::string& to, std::string_view prefix, std::string_view line, bool terminal);

}  // namespace dtrun::launcher
