// One dtrun invocation, from its arguments to its exit code; runs in the agent process.
#pragma once

#include <span>
#include <string>

namespace dtrun::launcher {

// Never throws: every error is a line on stderr and an exit code (rendezvous/contract/exit_codes.hpp). A run that
// succeeds prints nothing.
int launch(std::span<const std::string> arguments) noexcept;

}  // namespace dtrun::launcher
