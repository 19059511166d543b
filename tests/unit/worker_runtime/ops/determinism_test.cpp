#include <atomic>
#include <stdexcept>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/unit/worker_runtime/ops/support.hpp"
#include "worker_runtime/ops/adamw.hpp"
#include "worker_runtime/ops/attention.hpp"
#include "worker_runtime/ops/cross_entropy.hpp"
#include "worker_runtime/ops/elementwise.hpp"
#include "worker_runtime/ops/embedding.hpp"
#include "worker_runtime/ops/gelu.hpp"
#include "worker_runtime/ops/linear.hpp"
#include "worker_runtime/ops/norm.hpp"
#include "worker_runtime/ops/rope.hpp"
#include "worker_runtime/ops/swiglu.hpp"

namespace dtrun::runtime::test {
namespace {

std::uint64_t hash(std::uint64_t seed, const void* data, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) seed = (seed ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001B3U;
  return seed;
}

// Runs every op on sizes that make several uneven chunks, and hashes all outputs.
std::uint64_t hash_of_all_ops() {
  const std::int64_t n = 530;
  const std::int64_t d = 70;
  const auto in_out = ops::WeightLayout::in_out;
  std::vector<Tensor> outputs;
  const auto out = [&](const Shape& shape) { return outputs.emplace_back(empty(shape)); };
  const Tensor x = random({n, d}, 1);
  const Tensor w = random({d, 600}, 2);
  const Tensor dy = random({n, 600}, 3);
  ops::linear_gelu_forward(x, w, random({600}, 4), in_out, out({n, 600}), out({n, 600}));
  ops::linear_backward_input(dy, w, in_out, out({n, d}));
  ops::linear_backward_weight(x, dy, in_out, out({d, 600}), out({600}));
  ops::linear_backward_weight(x, dy, ops::WeightLayout::out_in, out({600, d}), Tensor());
  const Tensor mean = out({n});
  const Tensor rstd = out({n});
  ops::layernorm_forward(x, random({d}, 5), random({d}, 6), 1e-5F, out({n, d}), mean, rstd);
  const Tensor dnorm = random({n, d}, 7);
  ops::layernorm_backward_input(dnorm, x, random({d}, 5), mean, rstd, out({n, d}), ops::Into::overwrite);
  ops::layernorm_backward_weight(dnorm, x, mean, rstd, out({d}), out({d}));
  const Tensor large = random({100003}, 8);
  ops::gelu_backward(large, random({100003}, 9), out({100003}));
  ops::add(large, large, out({100003}));
  const Tensor qkv = random({5, 50, 90}, 10);
  const Tensor heads = out({5, 50, 30});
  const Tensor lse = out({5, 3, 50});
  ops::attention_forward(qkv, 3, heads, lse);
  ops::attention_backward(qkv, heads, lse, random({5, 50, 30}, 11), 3, out({5, 50, 90}));
  ops::rmsnorm_forward(x, random({d}, 5), 1e-5F, out({n, d}), rstd);
  ops::rmsnorm_backward_input(dnorm, x, random({d}, 5), rstd, out({n, d}), ops::Into::overwrite);
  ops::rmsnorm_backward_weight(dnorm, x, rstd, out({d}));
  ops::swiglu_forward(large, random({100003}, 9), out({100003}));
  ops::swiglu_backward(large, random({100003}, 9), large, out({100003}), out({100003}));
  const Tensor table = out({50, 10});
  ops::rope_table(10000, table);
  ops::rope_forward(random({5, 50, 600}, 18), table, out({5, 50, 600}));
  ops::rope_backward(random({5, 50, 600}, 18), table, out({5, 50, 600}));
  const Tensor q = random({5, 50, 30}, 19);
  const Tensor kv = random({5, 50, 10}, 20);
  const Tensor mixed = out({5, 50, 30});
  const Tensor mixed_lse = out({5, 6, 50});
  ops::grouped_attention_forward(q, kv, kv, 6, 2, mixed, mixed_lse);
  ops::grouped_attention_backward(q, kv, kv, mixed, mixed_lse, q, 6, 2,
                                  {out({5, 50, 30}), out({5, 50, 10}), out({5, 50, 10})});
  std::vector<std::int32_t> ids(530);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i * i % 200);
  const Tensor places = integers({10, 53}, ids);
  ops::embedding_forward(places, random({200, d}, 12), random({60, d}, 13), out({10, 53, d}));
  ops::embedding_backward_tokens(places, random({10, 53, d}, 14), out({200, d}), ops::Into::overwrite);
  ops::embedding_backward_positions(random({10, 53, d}, 14), out({60, d}));
  const Tensor logits = outputs.emplace_back(random({n, 200}, 15));
  const double loss = ops::cross_entropy_forward_backward(logits, places).loss_sum;
  const Tensor p = outputs.emplace_back(random({100003}, 16));
  ops::adamw_step(p, large, outputs.emplace_back(random({100003}, 17)),
                  outputs.emplace_back(Tensor::zeros({100003}, DType::f32, arena())), {}, 3);
  const double norm = ops::squared_norm(large);
  std::uint64_t result = hash(hash(0, &loss, sizeof(loss)), &norm, sizeof(norm));
  for (const Tensor& tensor : outputs) result = hash(result, tensor.raw(), tensor.bytes());
  return result;
}

struct Threads {
  explicit Threads(int count) { ops::set_num_threads(count); }
  ~Threads() { ops::set_num_threads(1); }
};

}  // namespace

TEST_CASE("every op gives the same bits with 1, 2, 3 and 7 threads") {
  on_every_level([] {
    const std::uint64_t one = hash_of_all_ops();
    for (const int count : {2, 3, 7}) {
      const Threads threads(count);
      CHECK(hash_of_all_ops() == one);
    }
    CHECK(hash_of_all_ops() == one);
  });
}

TEST_CASE("every chunk runs once, nested calls run inline, and an exception reaches the caller") {
  const Threads threads(3);
  for (int repeat = 0; repeat < 200; ++repeat) {
    std::vector<std::atomic<int>> seen(37);
    ops::parallel_chunks(37, [&](std::int64_t i) {
      ops::parallel_chunks(2, [&](std::int64_t) { ++seen[static_cast<std::size_t>(i)]; });
    });
    for (const auto& count : seen) REQUIRE(count == 2);
  }
  CHECK_THROWS_WITH(ops::parallel_chunks(50,
                                         [](std::int64_t i) {
                                           if (i == 20) throw std::runtime_error("chunk 20");
                                         }),
                    "chunk 20");
  ops::parallel_chunks(0, [](std::int64_t) { FAIL("no chunk to run"); });
  CHECK_THROWS_AS(ops::set_num_threads(0), UsageError);
  CHECK(ops::num_threads() == 3);
  CHECK(ops::default_num_threads(1) >= 1);
  CHECK(ops::default_num_threads(100000) == 1);
}

TEST_CASE("random values depend on seed, stream and global index alone, so shards hold slices of the whole") {
  const ops::RandomStream stream = ops::RandomStream::of(1234, "h.0.attn.c_attn.weight");
  const Tensor whole = empty({30, 41});
  ops::fill_normal(whole, 0.02F, stream);
  const Tensor rows = empty({7, 41});
  ops::fill_normal(rows, 0.02F, stream, {.first = 11 * 41});
  CHECK(same_bits(rows, whole.narrow(11, 7)));
  const Tensor columns = empty({30, 13});
  ops::fill_normal(columns, 0.02F, stream, {.first = 5, .row_length = 13, .row_stride = 41});
  for (std::int64_t r = 0; r < 30; ++r) {
    for (std::int64_t c = 0; c < 13; ++c)
      CHECK(columns.data<float>()[r * 13 + c] == whole.data<float>()[r * 41 + 5 + c]);
  }
  const Tensor middle = empty({20});  // columns 3 to 12 of a row, and the beginning of the next one
  ops::fill_normal(middle, 0.02F, stream, {.first = 5, .row_length = 13, .row_stride = 41, .skip = 2 * 13 + 3});
  CHECK(std::ranges::equal(middle.span<float>(), columns.span<float>().subspan(2 * 13 + 3, 20)));
  const Tensor other = empty({30, 41});
  ops::fill_normal(other, 0.02F, ops::RandomStream::of(1234, "h.0.attn.c_attn.bias"));
  CHECK(!same_bits(other, whole));
  CHECK_THROWS_AS(ops::fill_normal(columns, 1.0F, stream, {.first = -1, .row_length = 7, .row_stride = 9}), ShapeError);
}

TEST_CASE("normal values have the right moments and are pinned to the bit") {
  const Tensor x = empty({400000});
  ops::fill_normal(x, 2.0F, {42, 3});
  double sum = 0;
  double squares = 0;
  double fourth = 0;
  for (const float v : x.span<float>()) {
    const double z = static_cast<double>(v) / 2;
    sum += z;
    squares += z * z;
    fourth += z * z * z * z;
  }
  const double n = 400000;
  CHECK(std::abs(sum / n) < 0.006);
  CHECK(squares / n == Approx(1).margin(0.01));
  CHECK(fourth / n == Approx(3).margin(0.1));
  // Other machines and compilers must draw these bits too.
  CHECK(hash(0, x.raw(), x.bytes()) == 0x3AA306DF580C88ADU);
  ops::fill_uniform(x, -1.0F, 3.0F, {42, 4});
  double mean = 0;
  for (const float v : x.span<float>()) {
    REQUIRE((v >= -1.0F && v < 3.0F));
    mean += static_cast<double>(v) / n;
  }
  CHECK(mean == Approx(1).margin(0.01));
}

}  // namespace dtrun::runtime::test
