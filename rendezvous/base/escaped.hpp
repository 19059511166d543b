// Text of others (workers, peers) made harmless for a terminal and a log.
#pragma once

#include <string>
#include <string_view>

namespace dtrun {

// Adds `text` with everything escaped as \xNN that could move the cursor, forge a line or switch the terminal's state:
// control characters other than tab, escape sequences, C1 controls, marks that turn the direction of text, invalid
// UTF-8. Colours ("ESC [ ... m") stay when `keep_colors`; returns whether there were any.
bool append_escaped(std::string& to, std::string_view text, bool keep_colors);
std::string escaped(std::string_view text);

}  // namespace dtrun
