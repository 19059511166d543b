// The host twins of all kernels, by number.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dtrun::runtime::kernels {

// Which blocks run, in what order: for tests. The default is all of them in order.
struct HostLaunch {
  std::uint64_t shuffle = 0;  // other than 0: a seed of the order within phases
  bool backwards = false;     // the last block first
  int part = 0;               // every `parts`-th block from this one on
  int parts = 1;
};

// Runs kernel number `kernel` (KernelId) with these parameters on the host. False when there is no such kernel or its
// parameters have another size.
bool launch_on_host(int kernel, const void* functor, std::size_t functor_bytes, const HostLaunch& how = {});

}  // namespace dtrun::runtime::kernels
