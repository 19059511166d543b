// All kernels by number. A kernel is added here and nowhere else: the CUDA library makes a launch for each,
// host_launch.hpp a host twin.
#pragma once

#include <cstdint>
#include <type_traits>

#include "worker_runtime/kernels/activation.hpp"
#include "worker_runtime/kernels/attention.hpp"
#include "worker_runtime/kernels/attention_backward.hpp"
#include "worker_runtime/kernels/columns.hpp"
#include "worker_runtime/kernels/cross_entropy.hpp"
#include "worker_runtime/kernels/cross_entropy_part.hpp"
#include "worker_runtime/kernels/elementwise.hpp"
#include "worker_runtime/kernels/embedding.hpp"
#include "worker_runtime/kernels/norm.hpp"
#include "worker_runtime/kernels/optimizer.hpp"
#include "worker_runtime/kernels/rank_reduce.hpp"

// X(NAME, TYPE...): TYPE may hold commas. Groups, so that they can be compiled apart.
#define DTRUN_BOTH_TYPES(X, name, Kernel) X(name##_f32, Kernel<float>) X(name##_bf16, Kernel<Bf16>)

#define DTRUN_ELEMENT_KERNELS(X)                       \
  DTRUN_BOTH_TYPES(X, fill, Fill)                      \
  DTRUN_BOTH_TYPES(X, scale, Scale)                    \
  DTRUN_BOTH_TYPES(X, scale_by, ScaleBy)               \
  DTRUN_BOTH_TYPES(X, add, Add)                        \
  DTRUN_BOTH_TYPES(X, add_periodic, AddPeriodic)       \
  DTRUN_BOTH_TYPES(X, axpy, Axpy)                      \
  X(cast_to_bf16, Cast<float, Bf16>)                   \
  X(cast_to_f32, Cast<Bf16, float>)                    \
  X(round_to_bf16, RoundToBf16)                        \
  DTRUN_BOTH_TYPES(X, gelu_forward, GeluForward)       \
  DTRUN_BOTH_TYPES(X, gelu_backward, GeluBackward)     \
  DTRUN_BOTH_TYPES(X, swiglu_forward, SwigluForward)   \
  DTRUN_BOTH_TYPES(X, swiglu_backward, SwigluBackward) \
  DTRUN_BOTH_TYPES(X, rope, Rope)                      \
  DTRUN_BOTH_TYPES(X, rank_reduce, RankReduce)         \
  X(adamw, AdamW)                                      \
  X(sgd, Sgd)                                          \
  DTRUN_BOTH_TYPES(X, squared_norm, SquaredNorm)       \
  DTRUN_BOTH_TYPES(X, exact_squares, ExactSquares)

#define DTRUN_ROW_KERNELS(X)                                                    \
  DTRUN_BOTH_TYPES(X, layernorm_forward, LayernormForward)                      \
  DTRUN_BOTH_TYPES(X, layernorm_backward_input, LayernormBackwardInput)         \
  DTRUN_BOTH_TYPES(X, layernorm_backward_weight, LayernormBackwardWeight)       \
  DTRUN_BOTH_TYPES(X, rmsnorm_forward, RmsnormForward)                          \
  DTRUN_BOTH_TYPES(X, rmsnorm_backward_input, RmsnormBackwardInput)             \
  DTRUN_BOTH_TYPES(X, rmsnorm_backward_weight, RmsnormBackwardWeight)           \
  DTRUN_BOTH_TYPES(X, sum_of_rows, SumOfRows)                                   \
  DTRUN_BOTH_TYPES(X, embedding_forward, EmbeddingForward)                      \
  DTRUN_BOTH_TYPES(X, embedding_backward_tokens, EmbeddingBackwardTokens)       \
  DTRUN_BOTH_TYPES(X, embedding_backward_positions, EmbeddingBackwardPositions) \
  X(count_targets, CountTargets)                                                \
  DTRUN_BOTH_TYPES(X, cross_entropy_rows, CrossEntropyRows)                     \
  X(sum_losses, SumLosses)                                                      \
  DTRUN_BOTH_TYPES(X, row_max, RowMax)                                          \
  DTRUN_BOTH_TYPES(X, exp_sums, ExpSums)                                        \
  X(part_losses, PartLosses)                                                    \
  DTRUN_BOTH_TYPES(X, part_gradient, PartGradient)

#define DTRUN_ATTENTION_OF(X, type, T)                                       \
  X(attention_forward_64_##type, AttentionForward<T, 64>)                    \
  X(attention_forward_128_##type, AttentionForward<T, 128>)                  \
  X(attention_forward_256_##type, AttentionForward<T, 256>)                  \
  X(attention_backward_queries_64_##type, AttentionBackwardQueries<T, 64>)   \
  X(attention_backward_queries_128_##type, AttentionBackwardQueries<T, 128>) \
  X(attention_backward_queries_256_##type, AttentionBackwardQueries<T, 256>) \
  X(attention_backward_keys_64_##type, AttentionBackwardKeys<T, 64>)         \
  X(attention_backward_keys_128_##type, AttentionBackwardKeys<T, 128>)       \
  X(attention_backward_keys_256_##type, AttentionBackwardKeys<T, 256>)

#define DTRUN_ATTENTION_KERNELS(X) DTRUN_ATTENTION_OF(X, f32, float) DTRUN_ATTENTION_OF(X, bf16, Bf16)

#define DTRUN_KERNELS(X) DTRUN_ELEMENT_KERNELS(X) DTRUN_ROW_KERNELS(X) DTRUN_ATTENTION_KERNELS(X)

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
