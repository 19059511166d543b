// What the agent tells the coordinator of its job when its guardian was killed, before it kills the workers: the other
// nodes must hear that this node goes before their workers miss ours, or it would look like a failure of theirs.
#pragma once

#include <string_view>

namespace dtrun::launcher {

// In the agent: bytes for a connected socket, which is borrowed. Nothing is said when they are too long.
void prepare_last_words(int socket, std::string_view bytes) noexcept;
void forget_last_words() noexcept;
// Usable in a signal handler; does not wait.
void say_last_words() noexcept;

}  // namespace dtrun::launcher
