// Who sits on a port of this machine; for the error message when it cannot be opened.
#pragma once

#include <cstdint>
#include <string>

namespace dtrun {

// "pid 4711 (python3 serve.py)", or what can be told of a process that may not be looked into; empty when nothing is
// known. Reads /proc; never throws.
std::string port_holder(std::uint16_t port) noexcept;

}  // namespace dtrun
