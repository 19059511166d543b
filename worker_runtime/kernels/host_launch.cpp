#include "worker_runtime/kernels/host_launch.hpp"

#include <cstring>

#include "worker_runtime/kernels/host_block.hpp"
#include "worker_runtime/kernels/list.hpp"

namespace dtrun::runtime::kernels {
namespace {

template <class Kernel>
bool run(const void* functor, std::size_t bytes, const HostLaunch& how) {
  static_assert(std::is_trivially_copyable_v<Kernel>);
  if (bytes != sizeof(Kernel)) return false;
  Kernel kernel;
  std::memcpy(static_cast<void*>(&kernel), functor, bytes);
  run_on_host(kernel, how);
  return true;
}

}  // namespace

bool launch_on_host(int kernel, const void* functor, std::size_t functor_bytes, const HostLaunch& how) {
  switch (static_cast<KernelId>(kernel)) {
#define DTRUN_X(name, ...) \
  case KernelId::name:     \
    return run<__VA_ARGS__>(functor, functor_bytes, how);
    DTRUN_KERNELS(DTRUN_X)
#undef DTRUN_X
    case KernelId::count:
      break;
  }
  return false;
}

}  // namespace dtrun::runtime::kernels
