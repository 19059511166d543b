// The host twins of all kernels, by number.
#pragma once

#include <cstddef>

namespace dtrun::runtime::kernels {

// Runs kernel number `kernel` (KernelId) with these parameters on the host, whole. False when there is no such kernel
// or its parameters have another size.
bool launch_on_host(int kernel, const void* functor, std::size_t functor_bytes);

}  // namespace dtrun::runtime::kernels
