#include "worker_runtime/comm/shm/reduce.hpp"

#include <cstdlib>
#include <string_view>

namespace dtrun::runtime::shm {

namespace {

const Kernels& choose() {
#if defined(__x86_64__)
  const char* asked = std::getenv("DTRUN_CPU");
  const std::string_view limit = asked != nullptr ? asked : "v4";
  const bool has_v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool has_v4 = has_v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (has_v4 && limit != "v2" && limit != "v3") return v4::kKernels;
  if (has_v3 && limit != "v2") return v3::kKernels;
#endif
  return v2::kKernels;
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

}  // namespace dtrun::runtime::shm
