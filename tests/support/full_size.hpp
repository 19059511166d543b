// Tests that would take longer than half a minute run at reduced size, unless scripts/stress.sh asks for all of it.
#pragma once

#include <cstdlib>

namespace dtrun::tests {

inline int full_size(int full, int reduced) { return std::getenv("DTRUN_FULL_SIZE") != nullptr ? full : reduced; }

}  // namespace dtrun::tests
