// What the fake cuBLASLt makes (fake_blas_lt.cpp), and what it refuses.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "worker_runtime/device/blas_lt_api.hpp"

namespace dtrun::runtime::ops::gpu {

inline std::atomic<int> live_objects{0};

struct Object {
  Object() { ++live_objects; }
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  ~Object() { --live_objects; }
};
struct Handle : Object {};
struct Desc : Object {
  blas_lt::Compute compute;
  blas_lt::Type scale;
  blas_lt::Transpose transpose_a = blas_lt::Transpose::no, transpose_b = blas_lt::Transpose::no;
  blas_lt::Epilogue epilogue = blas_lt::Epilogue::none;
  const void* bias = nullptr;
  int bias_type = -1;  // the type of D
};
struct Layout : Object {
  blas_lt::Type type;
  std::uint64_t rows, cols;
  std::int64_t ld;
};
struct Preference : Object {
  std::size_t workspace = 0;
  std::uint32_t alignment[4] = {256, 256, 256, 256};  // of A, B, C and D
};

// What an algorithm was found for.
struct Found {
  std::uint64_t magic;
  std::uint64_t problem;
  std::uint32_t alignment[4];
  std::uint64_t workspace;
};
static_assert(sizeof(Found) <= sizeof(blas_lt::Algo));
inline constexpr std::uint64_t kMagic = 0xD7A1604A;
inline std::size_t size_of(blas_lt::Type type) { return type == blas_lt::Type::f32 ? 4 : 2; }
inline std::size_t bytes_of(const Layout& layout) { return layout.rows * layout.cols * size_of(layout.type); }

// The product that the library's arguments mean: columns first, A is m x k.
struct Problem {
  const Desc& desc;
  const Layout &a, &b, &c, &d;
  std::uint64_t k() const { return desc.transpose_a == blas_lt::Transpose::yes ? a.rows : a.cols; }
};

// What the library says of such a product.
blas_lt::Status check_problem(const Problem& problem);
// Equal for what one algorithm is good for.
std::uint64_t hash_of(const Problem& problem);

}  // namespace dtrun::runtime::ops::gpu
