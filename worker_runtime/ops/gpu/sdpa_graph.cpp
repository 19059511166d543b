#include "worker_runtime/ops/gpu/sdpa_graph.hpp"

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime::ops::gpu {
namespace {

using cudnn::Pointwise;
using cudnn::Reduce;
using cudnn::Type;
using Id = std::int64_t;

// What both graphs are made of: extents [batch, heads, rows, columns].
class Builder {
 public:
  Builder(CudnnGraph& graph, const SdpaShape& shape) : graph_(graph), s_(shape) {}

  // [heads, time, head_dim] of each sequence.
  Id rows(std::int64_t heads, std::int64_t stride) {
    return graph_.in_memory({s_.batch, heads, s_.time, s_.head_dim}, {s_.time * stride, s_.head_dim, stride, 1},
                            Type::bf16);
  }
  // The same memory, seen as [heads, head_dim, time].
  Id columns(std::int64_t heads, std::int64_t stride) {
    return graph_.in_memory({s_.batch, heads, s_.head_dim, s_.time}, {s_.time * stride, s_.head_dim, 1, stride},
                            Type::bf16);
  }
  Id row_numbers() { return graph_.in_memory(row_extents(), row_strides(), Type::f32, 4); }
  Id row_values() { return graph_.between(row_extents(), row_strides()); }
  // One value for each pair of a query and a key.
  Id scores(Type type = Type::f32) { return graph_.between(score_extents(), score_strides(), type); }
  Id transposed_scores() {
    const auto t = s_.time;
    return graph_.between(score_extents(), {s_.heads * t * t, t * t, 1, t}, Type::bf16);
  }

  Id with(Pointwise mode, Id x, Id b, Id y) {
    graph_.pointwise(mode, x, b, y);
    return y;
  }
  Id of(Pointwise mode, Id x, Id y) { return with(mode, x, 0, y); }
  Id scaled_product(Id q, Id k, Id scale) {
    const Id product = scores();
    graph_.matmul(q, k, product);
    return with(Pointwise::mul, product, scale, scores());
  }
  // x where the key is not later than the query.
  Id causal(Id x, Id masked) {
    const Id query = scores(Type::i32), key = scores(Type::i32), seen = scores(Type::boolean), y = scores();
    graph_.pointwise(Pointwise::index, x, 0, query, 0, 2);
    graph_.pointwise(Pointwise::index, x, 0, key, 0, 3);
    graph_.pointwise(Pointwise::greater_or_equal, query, key, seen);
    graph_.pointwise(Pointwise::select, x, masked, y, seen);
    return y;
  }
  Id transposed(Id x) {
    const Id y = transposed_scores();
    graph_.reshape(x, y);
    return y;
  }
  // to = left right, summed over the heads that share keys.
  void product_for_keys(Id left, Id right, Id to) {
    if (s_.heads == s_.kv_heads) return graph_.matmul(left, right, to);
    const auto t = s_.time, d = s_.head_dim;
    const Id all = graph_.between({s_.batch, s_.heads, t, d}, {s_.heads * t * d, t * d, d, 1}, Type::bf16);
    graph_.matmul(left, right, all);
    graph_.reduce(Reduce::add, all, to);
  }

 private:
  CudnnExtents row_extents() const { return {s_.batch, s_.heads, s_.time, 1}; }
  CudnnExtents row_strides() const { return {s_.heads * s_.time, s_.time, 1, 1}; }
  CudnnExtents score_extents() const { return {s_.batch, s_.heads, s_.time, s_.time}; }
  CudnnExtents score_strides() const { return {s_.heads * s_.time * s_.time, s_.time * s_.time, s_.time, 1}; }
  CudnnGraph& graph_;
  const SdpaShape& s_;
};

}  // namespace

CudnnGraph sdpa_forward_graph(const CudnnApi& api, const SdpaShape& s) {
  CudnnGraph graph(api);
  Builder make(graph, s);
  const Id q = make.rows(s.heads, s.q_stride), k = make.columns(s.kv_heads, s.kv_stride);
  const Id v = make.rows(s.kv_heads, s.kv_stride), out = make.rows(s.heads, s.out_stride), lse = make.row_numbers();
  const Id scale = graph.number(), masked = graph.number();
  DTRUN_ASSERT(masked == SdpaForwardIds::masked);

  const Id seen = make.causal(make.scaled_product(q, k, scale), masked);
  const Id top = make.row_values();
  graph.reduce(Reduce::max, seen, top);
  const Id shifted = make.with(Pointwise::sub, seen, top, make.scores());
  const Id exponential = make.of(Pointwise::exp, shifted, make.scores());
  const Id sum = make.row_values();
  graph.reduce(Reduce::add, exponential, sum);
  const Id log = make.of(Pointwise::log, sum, make.row_values());
  make.with(Pointwise::add, top, log, lse);
  const Id probabilities = make.with(Pointwise::div, exponential, sum, make.scores(Type::bf16));
  graph.matmul(probabilities, v, out);
  return graph;
}

CudnnGraph sdpa_backward_graph(const CudnnApi& api, const SdpaShape& s) {
  CudnnGraph graph(api);
  Builder make(graph, s);
  const auto t = s.time, d = s.head_dim;
  const Id q = make.rows(s.heads, s.q_stride), k = make.columns(s.kv_heads, s.kv_stride);
  const Id v = make.columns(s.kv_heads, s.kv_stride), out = make.rows(s.heads, s.out_stride);
  const Id dout = make.rows(s.heads, s.out_stride), lse = make.row_numbers(), dq = make.rows(s.heads, s.q_stride);
  const Id dk = make.rows(s.kv_heads, s.kv_stride), dv = make.rows(s.kv_heads, s.kv_stride);
  const Id sums = make.row_numbers(), scale = graph.number(), masked = graph.number(), one = graph.number();
  DTRUN_ASSERT(one == SdpaBackwardIds::one);

  // sums = the dot products of out and dout. The engines expect a factor here, which dropout would want.
  const Id both = graph.between({s.batch, s.heads, t, d}, {s.heads * t * d, t * d, d, 1});
  make.with(Pointwise::mul, dout, out, both);
  const Id dots = make.row_values();
  graph.reduce(Reduce::add, both, dots);
  make.with(Pointwise::mul, dots, one, sums);

  // The probabilities again, then dv = p^T dout.
  const Id scores = make.scaled_product(q, k, scale);
  const Id shifted = make.with(Pointwise::sub, scores, lse, make.scores());
  const Id probabilities = make.of(Pointwise::exp, make.causal(shifted, masked), make.scores());
  make.product_for_keys(make.transposed(probabilities), dout, dv);

  // ds = scale p (dout v^T - sums), then dk = ds^T q and dq = ds k.
  const Id dp = make.scores();
  graph.matmul(dout, v, dp);
  const Id less = make.with(Pointwise::sub, dp, sums, make.scores());
  const Id ds = make.with(Pointwise::mul, less, probabilities, make.scores());
  const Id scaled = make.with(Pointwise::mul, ds, scale, make.scores());
  make.product_for_keys(make.transposed(scaled), q, dk);
  const auto kv = s.kv_stride;
  const Id k_rows = graph.between({s.batch, s.kv_heads, t, d}, {t * kv, d, kv, 1}, Type::bf16);
  graph.reshape(k, k_rows);
  graph.matmul(scaled, k_rows, dq);
  return graph;
}

}  // namespace dtrun::runtime::ops::gpu
