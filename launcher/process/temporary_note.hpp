// The agent's temporary directory, noted where the guardian can read it: whoever of the two is left when the other was
// killed removes it, if nothing was written in it.
#pragma once

#include <string_view>

namespace dtrun::launcher {

// In the guardian, before the fork: memory that both see. Without it (none to be had) notes are lost.
void share_temporary_note() noexcept;
// In the agent. Empty: there is none, or it takes care of it itself from now on.
void note_temporary_directory(std::string_view path) noexcept;
// In whoever is left; usable in a signal handler.
void remove_noted_directory() noexcept;

}  // namespace dtrun::launcher
