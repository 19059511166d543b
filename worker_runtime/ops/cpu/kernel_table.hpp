// The kernels of one CPU level, as plain functions on pointers. Each is single-threaded; ops cut the work, check shapes
// and own memory. One constant table per level is built from the same sources (kernels_*.cpp); kernels() is the one in
// use.
#pragma once

#include <cstdint>

#include "worker_runtime/kernels/adamw_factors.hpp"

namespace dtrun::runtime::ops {

// C[rows, cols] = or += A[rows, depth] B[depth, cols], one block of a larger product.
struct GemmBlock {
  const float* a = nullptr;  // element (row, k) at row * lda + k, or what pack_a made of these rows
  std::int64_t lda = 0;
  bool a_packed = false;
  const float* packed_b = nullptr;  // slivers of tile_cols columns, each `depth` rows
  float* c = nullptr;
  std::int64_t ldc = 0;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t depth = 0;
  bool accumulate = false;
  const float* bias = nullptr;  // `cols` elements added to every row, or null
};

// `count` of the `depth` rows of B[depth, cols], to become slivers of tile_cols columns, each `depth` rows.
struct PackB {
  const float* b =
      nullptr;  // element (k, n) at k * ldb + n, or at n * ldb + k when transposed; at the first of these k
  std::int64_t ldb = 0;
  bool transposed = false;
  std::int64_t depth = 0;
  std::int64_t count = 0;
  std::int64_t cols = 0;
  float* packed = nullptr;  // whole slivers, at the first of these k
  float* sums = nullptr;    // [whole slivers], receives the sum over these k of each column, or null; not transposed
};

// Rows of q, k, v of one head, and what goes with them; strides in elements from one token to the next.
struct AttentionHead {
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  std::int64_t q_stride = 0;   // of q and dq
  std::int64_t kv_stride = 0;  // of k, v, dk and dv
  float* out = nullptr;        // forward: written; backward: read
  const float* dout = nullptr;
  std::int64_t out_stride = 0;  // of out and dout
  float* lse = nullptr;         // [time]
  float* dq = nullptr;
  float* dk = nullptr;
  float* dv = nullptr;
  bool add_kv = false;  // backward: dk and dv hold the sums of earlier queries that share these keys, and grow
  std::int64_t time = 0;
  std::int64_t head_dim = 0;
  float scale = 1.0F;
  float* workspace = nullptr;  // attention_workspace() floats, 64-byte aligned
};

using AdamWFactors = kernels::AdamWFactors;

struct KernelTable {
  std::int64_t tile_rows;
  std::int64_t tile_cols;
  void (*pack_b)(const PackB& part);
  // k in [k, k + count) of the rows of one GemmBlock, of which packed holds rows * depth; element (row, k + i) at
  // i * lda + row. Read in place, the lines of such an A would lie lda apart and fall into few
  // cache sets.
  void (*pack_a)(const float* a, std::int64_t lda, std::int64_t count, std::int64_t rows, std::int64_t k,
                 std::int64_t depth, float* packed);
  void (*gemm_block)(const GemmBlock& block);

  std::int64_t (*attention_workspace)(std::int64_t time, std::int64_t head_dim);
  void (*attention_forward)(const AttentionHead& head);
  void (*attention_backward)(const AttentionHead& head);

  void (*layernorm_forward)(const float* x, const float* gamma, const float* beta, float eps, std::int64_t rows,
                            std::int64_t d, float* y, float* mean, float* rstd);
  void (*layernorm_backward_input)(const float* dy, const float* x, const float* gamma, const float* mean,
                                   const float* rstd, std::int64_t rows, std::int64_t d, float* dx, bool add);
  // Columns [0, cols) of rows of length d; overwrites.
  void (*layernorm_backward_weight)(const float* dy, const float* x, const float* mean, const float* rstd,
                                    std::int64_t rows, std::int64_t d, std::int64_t cols, float* dgamma, float* dbeta);
  void (*rmsnorm_forward)(const float* x, const float* gamma, float eps, std::int64_t rows, std::int64_t d, float* y,
                          float* rstd);
  void (*rmsnorm_backward_input)(const float* dy, const float* x, const float* gamma, const float* rstd,
                                 std::int64_t rows, std::int64_t d, float* dx, bool add);
  // Columns [0, cols) of rows of length d; overwrites.
  void (*rmsnorm_backward_weight)(const float* dy, const float* x, const float* rstd, std::int64_t rows, std::int64_t d,
                                  std::int64_t cols, float* dgamma);
  // The largest, -inf of none; the sum of exp(x - top), with `keep` in place of the elements.
  float (*row_max)(const float* x, std::int64_t n);
  double (*exp_sum)(float* x, std::int64_t n, float top, bool keep);
  // Returns the loss of the row; when factor is not null the row becomes (softmax - onehot) * factor.
  double (*cross_entropy_row)(float* logits, std::int64_t classes, std::int64_t target, const float* factor);
  // In order.
  double (*sum)(const double* x, std::int64_t n);
  void (*column_sums)(const float* x, std::int64_t rows, std::int64_t d, std::int64_t cols, float* sums);

  void (*gelu_forward)(const float* x, float* y, std::int64_t n);
  void (*gelu_backward)(const float* x, const float* dy, float* dx, std::int64_t n);
  void (*swiglu_forward)(const float* gate, const float* up, float* y, std::int64_t n);
  void (*swiglu_backward)(const float* gate, const float* up, const float* dy, float* dgate, float* dup,
                          std::int64_t n);
  // One token: each of the heads, `half` pairs (x[i], x[half + i]), turned by the angle with these cosines and sines
  // times `direction` (1 or -1).
  void (*rope)(const float* x, const float* cosines, const float* sines, float direction, std::int64_t heads,
               std::int64_t half, float* y);
  void (*scale)(float* x, float factor, std::int64_t n);
  void (*add)(const float* a, const float* b, float* out, std::int64_t n);
  void (*axpy)(float factor, const float* x, float* y, std::int64_t n);
  double (*squared_norm)(const float* x, std::int64_t n);
  void (*to_bf16)(const float* x, std::uint16_t* y, std::int64_t n);
  void (*to_f32)(const std::uint16_t* x, float* y, std::int64_t n);
  void (*adamw)(float* param, const float* grad, float* m, float* v, const AdamWFactors& factors, std::int64_t n);
  // The exponential that softmax and GELU use, for its test.
  void (*exp)(const float* x, float* y, std::int64_t n);
};

// The table of cpu_level() (cpu_level.hpp).
const KernelTable& kernels();

}  // namespace dtrun::runtime::ops
