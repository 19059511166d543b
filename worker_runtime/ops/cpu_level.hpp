// Which build of the CPU kernels this process uses. All but `twin` come from one source; they differ in rounding only
// (fused multiply-add).
#pragma once

#include <cstdint>
#include <string_view>

namespace dtrun::runtime::ops {

// x86-64-v2, v3 (AVX2, FMA), v4 (AVX-512); plain: the compiler's default, the only one on other machines. twin: what a
// GPU runs (kernels/), on the host, and the matrix products of the best other level: slow, with the bits of --device
// fake-cuda.
enum class CpuLevel : std::uint8_t { plain, v2, v3, v4, twin };
std::string_view name_of(CpuLevel level);

// The best this machine has, or the one that DTRUN_CPU names ("v2", "v3", "v4", "plain", "twin", which is
// never chosen otherwise). Decided once, at the first op. Throws UsageError for an unknown name or one this machine or
// this build lacks.
CpuLevel cpu_level();
// Whether this machine and this build have it.
bool cpu_level_available(CpuLevel level) noexcept;
// For tests and benchmarks: switches all later ops. Not to be called while an op runs. Throws UsageError when not
// available.
void set_cpu_level(CpuLevel level);

}  // namespace dtrun::runtime::ops
