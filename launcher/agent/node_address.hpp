// Which of its addresses a node gives to the other nodes of its job.
#pragma once

#include <string>

#include "launcher/config/launch_config.hpp"

namespace dtrun::launcher {

// --local-addr as it is, or the first address of --interface; empty when neither is given. Throws UsageError when there
// is no such interface or it has no address.
std::string chosen_address(const RendezvousOptions& options);

}  // namespace dtrun::launcher
