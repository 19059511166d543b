#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "rendezvous/base/env.hpp"
#include "rendezvous/base/error.hpp"
#include "worker_runtime/ops/cpu/kernel_table.hpp"
#include "worker_runtime/ops/cpu_level.hpp"

namespace dtrun::runtime::ops {

#if defined(__x86_64__)
namespace v2 {
extern const KernelTable kTable;
}
namespace v3 {
extern const KernelTable kTable;
}
namespace v4 {
extern const KernelTable kTable;
}
#else
namespace plain {
extern const KernelTable kTable;
}
#endif

// twin.cpp
const KernelTable& twin_table(const KernelTable& best);

namespace {

constexpr CpuLevel kLevels[] = {CpuLevel::v4, CpuLevel::v3, CpuLevel::v2, CpuLevel::plain,
                                CpuLevel::twin};  // best first; the last one only when asked for

// The fastest one.
CpuLevel best_level() { return *std::ranges::find_if(kLevels, cpu_level_available); }

const KernelTable* table_of(CpuLevel level) {
  if (level == CpuLevel::twin) return &twin_table(*table_of(best_level()));
#if defined(__x86_64__)
  switch (level) {
    case CpuLevel::v2:
      return &v2::kTable;
    case CpuLevel::v3:
      return &v3::kTable;
    case CpuLevel::v4:
      return &v4::kTable;
    case CpuLevel::plain:
    case CpuLevel::twin:
      break;
  }
  return nullptr;
#else
  return level == CpuLevel::plain ? &plain::kTable : nullptr;
#endif
}

struct Choice {
  CpuLevel level;
  const KernelTable* table;
};

std::string available_names() {
  std::string names;
  for (const CpuLevel level : kLevels) {
    if (cpu_level_available(level)) names += (names.empty() ? "" : ", ") + std::string(name_of(level));
  }
  return names;
}

Choice decide() {
  const auto asked = env::get("DTRUN_CPU");
  for (const CpuLevel level : kLevels) {
    if (asked && !asked->empty() ? *asked == name_of(level) : cpu_level_available(level)) {
      if (cpu_level_available(level)) return {level, table_of(level)};
      throw UsageError("ops", fmt::format("DTRUN_CPU: this machine or build lacks \"{}\", expected one of {}", *asked,
                                          available_names()));
    }
  }
  if (asked && !asked->empty()) {
    throw UsageError("ops",
                     fmt::format("DTRUN_CPU: unknown level \"{}\", expected one of {}", *asked, available_names()));
  }
  throw UsageError("ops", "this CPU has none of x86-64-v2, v3, v4, which this build needs");
}

std::atomic<const KernelTable*> current_table{nullptr};
std::atomic<CpuLevel> current_level{CpuLevel::plain};

}  // namespace

std::string_view name_of(CpuLevel level) {
  switch (level) {
    case CpuLevel::plain:
      return "plain";
    case CpuLevel::v2:
      return "v2";
    case CpuLevel::v3:
      return "v3";
    case CpuLevel::v4:
      return "v4";
    case CpuLevel::twin:
      return "twin";
  }
  return "?";
}

bool cpu_level_available(CpuLevel level) noexcept {
  if (level == CpuLevel::twin) return cpu_level_available(CpuLevel::plain) || cpu_level_available(CpuLevel::v2);
#if defined(__x86_64__)
  // Named feature by feature, as compilers before GCC 12 do not know the levels; the rest of each level comes with
  // these.
  const bool has_v2 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
  const bool has_v3 =
      has_v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  const bool has_v4 = has_v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd") &&
                      __builtin_cpu_supports("avx512vl");
  switch (level) {
    case CpuLevel::v2:
      return has_v2;
    case CpuLevel::v3:
      return has_v3;
    case CpuLevel::v4:
      return has_v4;
    case CpuLevel::plain:
    case CpuLevel::twin:
      break;
  }
  return false;
#else
  return level == CpuLevel::plain;
#endif
}

void set_cpu_level(CpuLevel level) {
  if (!cpu_level_available(level)) {
    throw UsageError("ops", fmt::format("this machine or build lacks CPU level \"{}\", expected one of {}",
                                        name_of(level), available_names()));
  }
  current_level.store(level, std::memory_order_relaxed);
  current_table.store(table_of(level), std::memory_order_release);
}

const KernelTable& kernels() {
  if (const KernelTable* table = current_table.load(std::memory_order_acquire)) return *table;
  const Choice choice = decide();  // the same in every thread that may get here
  current_level.store(choice.level, std::memory_order_relaxed);
  current_table.store(choice.table, std::memory_order_release);
  return *choice.table;
}

CpuLevel cpu_level() {
  kernels();
  return current_level.load(std::memory_order_relaxed);
}

}  // namespace dtrun::runtime::ops
