#include "worker_runtime/ops/embedding.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/ops/checks.hpp"
#include "worker_runtime/ops/cpu/kernel_table.hpp"
#include "worker_runtime/ops/fault_text.hpp"
#include "worker_runtime/ops/gpu/gpu.hpp"
#include "worker_runtime/ops/threads.hpp"
#include "worker_runtime/ops/workspace.hpp"

namespace dtrun::runtime::ops {
namespace {

constexpr std::int64_t kRows = 64;  // of one chunk

void check_ids(std::string_view op, const Tensor& ids, std::int64_t vocabulary) {
  const auto span = ids.span<std::int32_t>();
  for (std::size_t i = 0; i < span.size(); ++i) {
    if (span[i] < 0 || span[i] >= vocabulary) {
      throw UsageError("ops", token_fault_text(std::string(op), static_cast<std::int64_t>(i), span[i], vocabulary));
    }
  }
}

// Calls function(row) for rows [0, rows) in fixed chunks.
template <class Function>
void for_rows(std::int64_t rows, Function function) {
  parallel_chunks((rows + kRows - 1) / kRows, [&](std::int64_t chunk) {
    for (std::int64_t row = chunk * kRows; row < std::min(rows, (chunk + 1) * kRows); ++row) function(row);
  });
}

// The places of every id, in order: those of id v are order[starts[v]] to order[starts[v + 1]].
struct Places {
  std::vector<std::int64_t> starts;
  std::vector<std::int64_t> order;
};

// Of the ids from `first` on, of which the table has `rows`.
Places places_by_id(std::span<const std::int32_t> ids, std::int64_t first, std::int64_t rows) {
  Places result{std::vector<std::int64_t>(static_cast<std::size_t>(rows) + 1), std::vector<std::int64_t>(ids.size())};
  const auto row_of = [&](std::int32_t id) { return id - first; };
  const auto is_here = [&](std::int32_t id) { return row_of(id) >= 0 && row_of(id) < rows; };
  for (const std::int32_t id : ids) {
    if (is_here(id)) ++result.starts[static_cast<std::size_t>(row_of(id)) + 1];
  }
  for (std::size_t v = 1; v < result.starts.size(); ++v) result.starts[v] += result.starts[v - 1];
  std::vector<std::int64_t> next(result.starts.begin(), result.starts.end() - 1);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (!is_here(ids[i])) continue;
    result.order[static_cast<std::size_t>(next[static_cast<std::size_t>(row_of(ids[i]))]++)] =
        static_cast<std::int64_t>(i);
  }
  return result;
}

std::int64_t whole_vocabulary(const VocabularyPart& part, std::int64_t rows) {
  return part.whole == 0 ? rows : part.whole;
}

}  // namespace

std::string token_fault_text(const std::string& op, std::int64_t place, std::int32_t id, std::int64_t limit) {
  return fmt::format("{}: token id {} at place {}, expected 0 to {}", op, id, place, limit - 1);
}

void embedding_forward(const Tensor& ids, const Tensor& tokens, const Tensor& positions, const Tensor& out,
                       VocabularyPart part) {
  constexpr std::string_view kOp = "embedding_forward";
  const auto [batch, time] = rows_of(kOp, "ids", ids, DType::i32);
  const auto [table_rows, d] = rows_of(kOp, "tokens", tokens);
  expect_rows(kOp, "out", out, batch * time, d);
  if (positions.defined()) {
    const Rows table = rows_of(kOp, "positions", positions);
    expect_rows(kOp, "positions", positions, std::max(table.rows, time), d);
  }
  if (ran_elsewhere(
          kOp, [&] { gpu::embedding_forward(ids, tokens, positions, out, part); }, ids, tokens, positions, out))
    return;
  check_ids(kOp, ids, whole_vocabulary(part, table_rows));
  const auto row_bytes = static_cast<std::size_t>(d) * sizeof(float);
  for_rows(batch * time, [&, time = time, d = d, table_rows = table_rows](std::int64_t place) {
    const std::int64_t row = ids.data<std::int32_t>()[place] - part.first;
    float* const to = out.data<float>() + place * d;
    if (row < 0 || row >= table_rows) {
      std::fill_n(to, d, 0.0F);
      return;
    }
    const float* const token = tokens.data<float>() + row * d;
    if (positions.defined()) {
      kernels().add(token, positions.data<float>() + place % time * d, to, d);
    } else if (row_bytes != 0) {
      std::memcpy(to, token, row_bytes);
    }
  });
}

void embedding_backward_tokens(const Tensor& ids, const Tensor& dout, const Tensor& dtokens, Into into,
                               VocabularyPart part) {
  constexpr std::string_view kOp = "embedding_backward_tokens";
  const auto [batch, time] = rows_of(kOp, "ids", ids, DType::i32);
  const auto [table_rows, d] = rows_of(kOp, "dtokens", dtokens);
  expect_rows(kOp, "dout", dout, batch * time, d);
  if (ran_elsewhere(
          kOp, [&] { gpu::embedding_backward_tokens(ids, dout, dtokens, into, part); }, ids, dout, dtokens))
    return;
  check_ids(kOp, ids, whole_vocabulary(part, table_rows));
  const Places places = places_by_id(ids.span<std::int32_t>(), part.first, table_rows);
  const float* const from = dout.data<float>();
  for_rows(table_rows, [&, d = d](std::int64_t id) {
    float* const to = dtokens.data<float>() + id * d;
    std::int64_t i = places.starts[static_cast<std::size_t>(id)];
    const std::int64_t end = places.starts[static_cast<std::size_t>(id) + 1];
    if (i == end) {
      if (into == Into::overwrite) std::fill_n(to, d, 0.0F);
      return;
    }
    const auto row = [&](std::int64_t at) { return from + places.order[static_cast<std::size_t>(at)] * d; };
    const float* sum = row(i);
    if (i + 1 < end) {
      float* const total = workspace(Scratch::kernel, d);
      kernels().add(row(i), row(i + 1), total, d);
      for (i += 2; i < end; ++i) kernels().add(total, row(i), total, d);
      sum = total;
    }
    if (into == Into::add) {
      kernels().add(to, sum, to, d);
    } else {
      std::copy_n(sum, d, to);
    }
  });
}

void embedding_backward_positions(const Tensor& dout, const Tensor& dpositions, std::int64_t first) {
  constexpr std::string_view kOp = "embedding_backward_positions";
  expect_dtype(kOp, "dout", dout, DType::f32);
  if (dout.rank() != 3)
    throw ShapeError("ops", fmt::format("{}: dout is {}, expected [B, T, d]", kOp, dout.shape().to_string()));
  const std::int64_t batch = dout.dim(0);
  const std::int64_t time = dout.dim(1);
  const std::int64_t d = dout.dim(2);
  const std::int64_t table = rows_of(kOp, "dpositions", dpositions).rows;
  expect_rows(kOp, "dpositions", dpositions, std::max(table, first + time), d);
  if (ran_elsewhere(
          kOp, [&] { gpu::embedding_backward_positions(dout, dpositions, first); }, dout, dpositions))
    return;
  const float* const from = dout.data<float>();
  for_rows(table, [&](std::int64_t position) {
    float* const to = dpositions.data<float>() + position * d;
    const std::int64_t t = position - first;
    if (t < 0 || t >= time || batch == 0) {
      std::fill_n(to, d, 0.0F);
      return;
    }
    std::copy_n(from + t * d, d, to);
    for (std::int64_t b = 1; b < batch; ++b) kernels().add(to, from + (b * time + t) * d, to, d);
  });
}

void add_positions(const Tensor& x, const Tensor& positions, std::int64_t first, const Tensor& y) {
  constexpr std::string_view kOp = "add_positions";
  expect_dtype(kOp, "x", x, DType::f32);
  if (x.rank() != 3)
    throw ShapeError("ops", fmt::format("{}: x is {}, expected [B, T, d]", kOp, x.shape().to_string()));
  const std::int64_t time = x.dim(1), d = x.dim(2);
  const std::int64_t table = rows_of(kOp, "positions", positions).rows;
  expect_rows(kOp, "positions", positions, std::max(table, first + time), d);
  expect_shape(kOp, "y", y, x.shape());
  if (ran_elsewhere(
          kOp, [&] { gpu::add_positions(x, positions, first, y); }, x, positions, y))
    return;
  for_rows(x.dim(0) * time, [&](std::int64_t place) {
    kernels().add(x.data<float>() + place * d, positions.data<float>() + (first + place % time) * d,
                  y.data<float>() + place * d, d);
  });
}

}  // namespace dtrun::runtime::ops
