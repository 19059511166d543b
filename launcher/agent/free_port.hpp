// A port for a store that a worker opens itself (TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1): free a moment ago, as in
// torchrun.
#pragma once

#include <string>

namespace dtrun::launcher {

// Throws UsageError when `host` is no address of this machine.
int free_port(const std::string& host);

}  // namespace dtrun::launcher
