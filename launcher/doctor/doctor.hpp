// `dtrun doctor`: what ended jobs left on this machine, and its removal on request.
#pragma once

#include <span>
#include <string>

namespace dtrun::launcher {

// Arguments from the word "doctor" on. Looks at processes (leftovers.hpp) and at directories (stale_directories.hpp);
// changes nothing unless told to. Returns 0 when nothing is left, 1 when something is, 2 for bad arguments.
int doctor(std::span<const std::string> arguments);

}  // namespace dtrun::launcher
