// All kernels by number. A kernel is added here and nowhere else: the CUDA library makes a launch for each,
// host_launch.hpp a host twin.
#pragma once

#include <cstdint>
#include <type_traits>

#include "worker_runtime/kernels/elementwise.hpp"
#include "worker_runtime/kernels/norm.hpp"

// X(NAME, TYPE...): TYPE may hold commas.
#define DTRUN_KERNELS(X)                            \
  X(add_f32, Add<float>)                            \
  X(add_bf16, Add<Bf16>)                            \
  X(layernorm_forward_f32, LayernormForward<float>) \
  X(layernorm_forward_bf16, LayernormForward<Bf16>)

namespace dtrun::runtime::kernels {

enum class KernelId : int {
#define DTRUN_X(name, ...) name,
  DTRUN_KERNELS(DTRUN_X)
#undef DTRUN_X
      count
};

template <class Kernel>
inline constexpr KernelId kernel_id = KernelId::count;
#define DTRUN_X(name, ...) \
  template <>              \
  inline constexpr KernelId kernel_id<__VA_ARGS__> = KernelId::name;
DTRUN_KERNELS(DTRUN_X)
#undef DTRUN_X

constexpr const char* name_of(KernelId id) {
  switch (id) {
#define DTRUN_X(name, ...) \
  case KernelId::name:     \
    return #name;
    DTRUN_KERNELS(DTRUN_X)
#undef DTRUN_X
    case KernelId::count:
      break;
  }
  return "?";
}

// FNV-1a over names and parameter sizes, in order: two builds with the same number agree on what a launch means.
constexpr std::uint64_t list_hash() {
  std::uint64_t hash = 14695981039346656037U;
  const auto add = [&](std::uint64_t value) { hash = (hash ^ value) * 1099511628211U; };
#define DTRUN_X(name, ...)                                                                           \
  for (const char* letter = #name; *letter != 0; ++letter) add(static_cast<unsigned char>(*letter)); \
  add(sizeof(__VA_ARGS__));
  DTRUN_KERNELS(DTRUN_X)
#undef DTRUN_X
  return hash;
}

}  // namespace dtrun::runtime::kernels
