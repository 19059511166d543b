// The part of cuBLASLt that dtrun calls, as a table of function pointers: filled from the real library
// (device/libraries.hpp) or by the fake (device/fake/). Values of enumerations are those of cublasLt.h; a test compares
// them where that header is installed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dtrun::runtime {

namespace blas_lt {
using Status = int;  // cublasStatus_t
inline constexpr Status ok = 0;
inline constexpr Status not_initialized = 1;
inline constexpr Status invalid_value = 7;
inline constexpr Status execution_failed = 13;
inline constexpr Status not_supported = 15;
using Handle = void*;
using MatmulDesc = void*;
using MatrixLayout = void*;
using Preference = void*;
struct Algo {  // cublasLtMatmulAlgo_t: opaque
  std::uint64_t data[8];
};
struct HeuristicResult {  // cublasLtMatmulHeuristicResult_t
  Algo algo;
  std::size_t workspace_bytes;
  Status state;
  float waves_count;
  int reserved[4];
};
enum class Type : int { f32 = 0, bf16 = 14 };      // cudaDataType_t
enum class Compute : int { f32 = 68, tf32 = 77 };  // cublasComputeType_t
enum class Transpose : int { no = 0, yes = 1 };    // cublasOperation_t
enum class Epilogue : std::uint32_t { none = 1, bias = 4 };
enum class DescAttribute : int { transpose_a = 3, transpose_b = 4, epilogue = 7, bias_pointer = 8, bias_type = 26 };
enum class PreferenceAttribute : int {
  max_workspace_bytes = 1,  // std::size_t
  min_alignment_a = 5,      // these: std::uint32_t, bytes
  min_alignment_b = 6,
  min_alignment_c = 7,
  min_alignment_d = 8,
};
}  // namespace blas_lt

// Names are those of the library without the prefix "cublasLt".
struct BlasLtApi {
  std::size_t (*get_version)();
  blas_lt::Status (*create)(blas_lt::Handle* handle);
  blas_lt::Status (*destroy)(blas_lt::Handle handle);
  blas_lt::Status (*matmul_desc_create)(blas_lt::MatmulDesc* desc, blas_lt::Compute compute, blas_lt::Type scale);
  blas_lt::Status (*matmul_desc_destroy)(blas_lt::MatmulDesc desc);
  blas_lt::Status (*matmul_desc_set_attribute)(blas_lt::MatmulDesc desc, blas_lt::DescAttribute attribute,
                                               const void* value, std::size_t bytes);
  blas_lt::Status (*matrix_layout_create)(blas_lt::MatrixLayout* layout, blas_lt::Type type, std::uint64_t rows,
                                          std::uint64_t cols, std::int64_t ld);
  blas_lt::Status (*matrix_layout_destroy)(blas_lt::MatrixLayout layout);
  blas_lt::Status (*matmul_preference_create)(blas_lt::Preference* preference);
  blas_lt::Status (*matmul_preference_destroy)(blas_lt::Preference preference);
  blas_lt::Status (*matmul_preference_set_attribute)(blas_lt::Preference preference,
                                                     blas_lt::PreferenceAttribute attribute, const void* value,
                                                     std::size_t bytes);
  blas_lt::Status (*matmul_algo_get_heuristic)(blas_lt::Handle handle, blas_lt::MatmulDesc desc,
                                               blas_lt::MatrixLayout a, blas_lt::MatrixLayout b,
                                               blas_lt::MatrixLayout c, blas_lt::MatrixLayout d,
                                               blas_lt::Preference preference, int requested,
                                               blas_lt::HeuristicResult* results, int* returned);
  blas_lt::Status (*matmul)(blas_lt::Handle handle, blas_lt::MatmulDesc desc, const void* alpha, const void* a,
                            blas_lt::MatrixLayout a_layout, const void* b, blas_lt::MatrixLayout b_layout,
                            const void* beta, const void* c, blas_lt::MatrixLayout c_layout, void* d,
                            blas_lt::MatrixLayout d_layout, const blas_lt::Algo* algo, void* workspace,
                            std::size_t workspace_bytes, void* stream);
  const char* (*get_status_name)(blas_lt::Status status);
  const char* (*get_status_string)(blas_lt::Status status);
};

}  // namespace dtrun::runtime
