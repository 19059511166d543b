// Signals as something to read (signalfd(2)), not as handlers: nothing is interrupted, and sanitizers, which put
// handlers off, change nothing.
#pragma once

#include <span>

#include "rendezvous/base/unique_fd.hpp"

namespace dtrun {

// Blocks the signals in the calling thread, for good: one that comes at the very end must not kill by its default
// action. The descriptor is non-blocking, close-on-exec and readable while a signal waits. Threads started later, and
// processes that do not reset it, inherit the mask. Throws SystemError.
UniqueFd open_signal_descriptor(std::span<const int> signals);

// The number of a signal that waits, 0 when there is none. Equal signals that came before the read count once.
int next_signal(int descriptor) noexcept;

}  // namespace dtrun
