// Attention by cuDNN on the simulated device, where cuDNN is the fake one: beside our kernels, and when it cannot be.
#include "worker_runtime/ops/gpu/sdpa.hpp"

#include "tests/unit/worker_runtime/ops/gpu/on_device.hpp"
#include "tests/unit/worker_runtime/ops/support.hpp"
#include "worker_runtime/device/cudnn.hpp"
#include "worker_runtime/ops/attention.hpp"
#include "worker_runtime/ops/elementwise.hpp"

namespace dtrun::runtime {
namespace {

using namespace ops;
using namespace test;
using Catch::Matchers::Contains;

Tensor narrow(const Tensor& x) {
  const Tensor y = empty(x.shape(), DType::bf16);
  cast_to_bf16(x, y);
  return y;
}
Tensor wide(const Tensor& x) {
  if (x.dtype() == DType::f32) return x;
  const Tensor y = empty(x.shape());
  cast_to_f32(x, y);
  return y;
}

struct Case {
  std::int64_t batch, heads, kv_heads, time, dim;
  bool joined() const { return heads == kv_heads; }  // q, k and v in one tensor
};

// All that attention gives, forward and backward, as f32 on the host.
struct Results {
  std::vector<Tensor> tensors;
};

Results attend(OnDevice& on, const Case& c, DType dtype = DType::bf16) {
  const auto random_there = [&](const Shape& shape, std::uint64_t stream) {
    const Tensor x = narrow(random(shape, stream));
    return on(dtype == DType::bf16 ? x : wide(x));
  };
  const std::int64_t b = c.batch, t = c.time, d = c.heads * c.dim, kd = c.kv_heads * c.dim;
  const Tensor out = on.empty({b, t, d}, dtype), lse = on.empty({b, c.heads, t}, DType::f32);
  const Tensor dout = random_there({b, t, d}, 9);
  Results results;
  if (c.joined()) {
    const Tensor qkv = random_there({b, t, 3 * d}, 1), dqkv = on.empty({b, t, 3 * d}, dtype);
    attention_forward(qkv, static_cast<int>(c.heads), out, lse);
    attention_backward(qkv, out, lse, dout, static_cast<int>(c.heads), dqkv);
    results.tensors = {out, lse, dqkv};
  } else {
    const Tensor q = random_there({b, t, d}, 1), k = random_there({b, t, kd}, 2), v = random_there({b, t, kd}, 3);
    const GroupedAttentionGrads grads{on.empty({b, t, d}, dtype), on.empty({b, t, kd}, dtype),
                                      on.empty({b, t, kd}, dtype)};
    const auto heads = static_cast<int>(c.heads), kv_heads = static_cast<int>(c.kv_heads);
    grouped_attention_forward(q, k, v, heads, kv_heads, out, lse);
    grouped_attention_backward(q, k, v, out, lse, dout, heads, kv_heads, grads);
    results.tensors = {out, lse, grads.dq, grads.dk, grads.dv};
  }
  for (Tensor& x : results.tensors) x = wide(x.to_host());
  return results;
}

double difference(const Results& got, const Results& expected) {
  double worst = 0;
  for (std::size_t i = 0; i < got.tensors.size(); ++i)
    worst = std::max(worst, error_of(got.tensors[i], doubles(expected.tensors[i])));
  return worst;
}

Results by_own_kernels(const Case& c, DType dtype = DType::bf16) {
  OnDevice on({.cudnn = nullptr});
  return attend(on, c, dtype);
}

bool same(const Results& a, const Results& b) {
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    if (!same_bits(a.tensors[i], b.tensors[i])) return false;
  }
  return true;
}

const Case kCases[] = {{2, 3, 3, 20, 16}, {1, 4, 4, 33, 8}, {2, 4, 2, 17, 24}, {3, 6, 1, 12, 8}, {1, 2, 2, 2, 64}};
const Case kSmall{1, 2, 2, 6, 8};

// A table with one member that a test spoils.
template <class Spoil>
CudnnApi spoiled(Spoil spoil) {
  CudnnApi api = gpu::fake_cudnn();
  spoil(api);
  return api;
}

}  // namespace

TEST_CASE("attention by cuDNN is that of our kernels, to the precision of bf16, forward and backward") {
  for (const Case& c : kCases) {
    INFO(c.batch << " x " << c.heads << "/" << c.kv_heads << " x " << c.time << " x " << c.dim);
    const Results own = by_own_kernels(c), own_f32 = by_own_kernels(c, DType::f32);
    const int before = gpu::fake_cudnn_runs();
    OnDevice on;
    const Results by_cudnn = attend(on, c);
    CHECK(gpu::fake_cudnn_runs() == before + 2);
    CHECK(on.device().cudnn()->made() == 2);
    CHECK(difference(by_cudnn, own) < 1e-2);
    CHECK(difference(by_cudnn, own_f32) < 2e-2);
    CHECK(fake::races().empty());
  }
}

TEST_CASE("a graph without its mask is found by the comparison with our kernels") {
  const CudnnApi api = spoiled([](CudnnApi& a) {
    a.set_attribute = [](cudnn::Descriptor descriptor, cudnn::Attribute attribute, cudnn::ValueType type,
                         std::int64_t count, const void* values) {
      const std::int64_t keys = 3;  // every key is as late as itself
      const bool axis = attribute == cudnn::Attribute::pointwise_axis;
      return gpu::fake_cudnn().set_attribute(descriptor, attribute, type, count, axis ? &keys : values);
    };
  });
  const Results own = by_own_kernels(kCases[0]);
  OnDevice on({.cudnn = &api});
  CHECK(difference(attend(on, kCases[0]), own) > 0.1);
}

TEST_CASE("a plan is made once for each shape, and the oldest of too many is made again") {
  OnDevice on;
  for (int i = 0; i < 3; ++i) attend(on, kSmall);
  CHECK(on.device().cudnn()->made() == 2);
  const auto most = static_cast<std::int64_t>(Cudnn::kMostPlans);
  for (std::int64_t time = 7; time < 7 + most / 2; ++time) attend(on, {1, 1, 1, time, 8});
  CHECK(on.device().cudnn()->made() == static_cast<std::size_t>(most) + 2);
  attend(on, kSmall);
  CHECK(on.device().cudnn()->made() == static_cast<std::size_t>(most) + 4);
}

TEST_CASE("what cuDNN does not take runs on our kernels, with their bits") {
  const int before = gpu::fake_cudnn_runs();
  const auto same_without = [](const Case& c, DType dtype, int major = 9) {
    const Results own = by_own_kernels(c, dtype);
    OnDevice on({.major = major});
    CHECK(same(attend(on, c, dtype), own));
  };
  same_without(kSmall, DType::f32);
  same_without({2, 4, 4, 6, 4}, DType::bf16);       // heads of 4 elements
  same_without({1, 2, 2, 1, 8}, DType::bf16);       // one token
  same_without({1, 1, 1, 6, 136}, DType::bf16, 8);  // more than an A100's kernels take
  CHECK(gpu::fake_cudnn_runs() == before);
}

TEST_CASE("what attention runs on is told, with the reason") {
  const auto told = [](const CudnnApi* api, int major, DType dtype, std::int64_t dim) {
    OnDevice on({.cudnn = api, .major = major});
    return gpu::attention_engine(on.device(), dtype, dim, 1024);
  };
  const CudnnApi* const api = &gpu::fake_cudnn();
  CHECK(told(api, 9, DType::bf16, 64) == "cuDNN 9.19");
  CHECK_THAT(told(api, 9, DType::f32, 64), Contains("own kernels (cuDNN's are for bf16"));
  CHECK_THAT(told(api, 8, DType::bf16, 256), Contains("own kernels (heads of 256 elements"));
  CHECK_THAT(told(nullptr, 9, DType::bf16, 64), Contains("own kernels (cuDNN is not used"));
  CHECK_THAT(told(api, 10, DType::bf16, 64), Contains("cuDNN 9.19 forward, own kernels backward ("));
  const CudnnApi old = spoiled([](CudnnApi& a) { a.get_version = [] { return std::size_t{91100}; }; });
  OnDevice on({.cudnn = &old});
  CHECK(gpu::attention_engine(on.device(), DType::bf16, 64, 1024) == "cuDNN 9.11");
  CHECK_THAT(gpu::attention_engine(on.device(), DType::bf16, 64, 1000), Contains("takes multiples of 128"));
}

TEST_CASE("a library that cannot make a handle, a plan or repeatable bits is replaced by our kernels") {
  const CudnnApi without_handle =
      spoiled([](CudnnApi& a) { a.create = [](cudnn::Handle*) { return cudnn::not_initialized; }; });
  const CudnnApi without_plan = spoiled([](CudnnApi& a) {
    a.get_attribute = [](cudnn::Descriptor, cudnn::Attribute, cudnn::ValueType, std::int64_t, std::int64_t*, void*) {
      return cudnn::bad_param;
    };
  });
  const CudnnApi changing = spoiled([](CudnnApi& a) {
    a.get_attribute = [](cudnn::Descriptor descriptor, cudnn::Attribute attribute, cudnn::ValueType type,
                         std::int64_t wanted, std::int64_t* count, void* values) {
      const auto status = gpu::fake_cudnn().get_attribute(descriptor, attribute, type, wanted, count, values);
      if (attribute == cudnn::Attribute::engine_numerical_notes)
        *static_cast<cudnn::Note*>(values) = cudnn::Note::nondeterministic;
      return status;
    };
  });
  const int before = gpu::fake_cudnn_runs();
  const Results own = by_own_kernels(kSmall);
  for (const CudnnApi* api : {&without_handle, &without_plan, &changing}) {
    OnDevice on({.cudnn = api});
    CHECK(same(attend(on, kSmall), own));
  }
  CHECK(gpu::fake_cudnn_runs() == before);
}

TEST_CASE("an error of a plan that runs is one of the device, with the library's words") {
  const CudnnApi api = spoiled([](CudnnApi& a) {
    a.execute = [](cudnn::Handle, cudnn::Descriptor, cudnn::Descriptor) { return cudnn::execution_failed; };
    a.get_last_error_string = [](char* text, std::size_t bytes) {
      text[std::string_view("the launch went wrong\n").copy(text, bytes - 1)] = '\0';
    };
  });
  OnDevice on({.cudnn = &api});
  CHECK_THROWS_WITH(attend(on, kSmall),
                    Contains("device 0: cudnnBackendExecute failed: CUDNN_STATUS_EXECUTION_FAILED (the launch went"));
}

TEST_CASE("what cuDNN reads and writes is known: a write to it from another stream without a wait is found") {
  for (const int which : {0, 1, 2}) {
    OnDevice on;
    const Tensor qkv = on(narrow(random({1, 6, 48}, 1))), out = on.empty({1, 6, 16}, DType::bf16);
    const Tensor lse = on.empty({1, 2, 6}, DType::f32);
    Stream side(on.device(), "side");
    attention_forward(qkv, 2, out, lse);
    const StreamGuard guard(side);
    CHECK_THROWS_AS((which == 0 ? qkv : which == 1 ? out : lse).zero(), DeviceError);
    CHECK(fake::races().size() == 1);
  }
}

TEST_CASE("backward runs in equal parts whose workspace is small") {
  const auto part = [](std::int64_t batch, std::int64_t heads, std::int64_t kv_heads, std::int64_t time) {
    const auto p = gpu::sdpa_backward_part({batch, heads, kv_heads, time, 64, 1, 1, 1});
    return std::pair(p.batch, p.kv_heads);
  };
  CHECK(part(4, 12, 12, 1024) == std::pair<std::int64_t, std::int64_t>(4, 12));   // 96 MiB
  CHECK(part(32, 12, 12, 1024) == std::pair<std::int64_t, std::int64_t>(8, 12));  // 24 MiB a sequence: 10, then 8
  CHECK(part(2, 32, 32, 4096) == std::pair<std::int64_t, std::int64_t>(1, 8));    // 32 MiB a head
  CHECK(part(1, 32, 8, 8192) == std::pair<std::int64_t, std::int64_t>(1, 1));     // 512 MiB a group: more than wanted
  CHECK(part(1, 32, 8, 16384) == std::pair<std::int64_t, std::int64_t>(0, 0));    // 2 GiB
}

TEST_CASE("parts of the batch or of the heads give what the whole gives") {
  for (const Case& c : {Case{4, 2, 2, 10, 8}, Case{2, 8, 4, 10, 8}}) {
    OnDevice on;
    const Results whole = attend(on, c);
    // Wanted as little as one group of heads: parts of that size.
    const gpu::SdpaShape shape{c.batch, c.heads, c.kv_heads, c.time, c.dim, 1, 1, 1};
    CHECK(gpu::sdpa_backward_part(shape, 1).batch == 1);
    CHECK(gpu::sdpa_backward_part(shape, 1).kv_heads == 1);
    gpu::set_sdpa_workspace_wanted(1);
    const Results parts = attend(on, c);
    gpu::set_sdpa_workspace_wanted(gpu::kWorkspaceWanted);
    CHECK(same(parts, whole));
  }
}

}  // namespace dtrun::runtime
