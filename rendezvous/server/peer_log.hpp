// Why a client was closed, in the log: at most one line a second, so that a port scan cannot fill a disk.
#pragma once

#include <string_view>

namespace dtrun::rendezvous {

// `socket` is still open; its peer is named by address, never looked up.
void log_closed_client(int socket, std::string_view why);

}  // namespace dtrun::rendezvous
