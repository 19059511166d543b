// The ops on a device whose kernels are their host twins: the bits of the CPU at level twin, whatever order the kernels
// leave open, and those of f32 rounded where tensors are bf16.
#include <set>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/unit/worker_runtime/kernels/direct_device.hpp"
#include "tests/unit/worker_runtime/kernels/op_cases.hpp"
#include "tests/unit/worker_runtime/ops/support.hpp"
#include "worker_runtime/device/fake/fake_cuda.hpp"
#include "worker_runtime/ops/elementwise.hpp"
#include "worker_runtime/ops/gpu/fake/fake_blas_lt.hpp"

namespace dtrun::runtime::test {
namespace {

Tensor copy_of(const Tensor& x) {
  const Tensor copy = empty(x.shape(), x.dtype());
  copy.copy_from(x);
  return copy;
}

class AtLevel {
 public:
  explicit AtLevel(ops::CpuLevel level) : before_(ops::cpu_level()) { ops::set_cpu_level(level); }
  ~AtLevel() { ops::set_cpu_level(before_); }
  AtLevel(const AtLevel&) = delete;
  AtLevel& operator=(const AtLevel&) = delete;

 private:
  ops::CpuLevel before_;
};

std::vector<Tensor> run_on_host(const OpCase& op) {
  std::vector<Tensor> tensors;
  for (const auto& operand : op.operands) tensors.push_back(copy_of(operand.host));
  op.run(tensors);
  return tensors;
}

std::vector<Tensor> run_on_device(const OpCase& op, const std::vector<Tensor>& from, const DirectLaunch& how = {},
                                  Device& device = direct_device()) {
  std::vector<Tensor> tensors;
  for (const Tensor& x : from) tensors.push_back(on_device(device, x));
  direct_launch = how;
  op.run(tensors);
  direct_launch = {};
  std::vector<Tensor> back;
  for (const Tensor& x : tensors) back.push_back(x.to_host());
  return back;
}

std::vector<Tensor> hosts(const OpCase& op) {
  std::vector<Tensor> tensors;
  for (const auto& operand : op.operands) tensors.push_back(operand.host);
  return tensors;
}

// NaN is NaN, whatever its bits.
bool equal(const Tensor& a, const Tensor& b) {
  if (same_bits(a, b)) return true;
  if (a.dtype() != DType::f32 || a.numel() != b.numel()) return false;
  for (std::int64_t i = 0; i < a.numel(); ++i) {
    const float x = a.data<float>()[i], y = b.data<float>()[i];
    if (std::memcmp(&x, &y, sizeof x) != 0 && !(std::isnan(x) && std::isnan(y))) return false;
  }
  return true;
}

void expect_equal(const std::vector<Tensor>& got, const std::vector<Tensor>& expected) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    INFO("operand " << i);
    CHECK(equal(got[i], expected[i]));
  }
}

const std::vector<OpCase>& all_cases() {
  static const std::vector<OpCase> made = op_cases();
  return made;
}

// Without the products of matrices, which the direct device has not.
const std::vector<OpCase>& cases() {
  static const std::vector<OpCase> made = [] {
    auto some = all_cases();
    std::erase_if(some, [](const OpCase& op) { return op.product; });
    return some;
  }();
  return made;
}

Tensor narrowed(const Tensor& x) {
  const Tensor narrow = empty(x.shape(), DType::bf16);
  ops::cast_to_bf16(x, narrow);
  return narrow;
}

Tensor widened(const Tensor& x) {
  const Tensor wide = empty(x.shape());
  ops::cast_to_f32(x, wide);
  return wide;
}

}  // namespace

TEST_CASE("every op has the bits of the CPU at level twin on a device, in every order that its kernels leave open") {
  const AtLevel twin(ops::CpuLevel::twin);
  const std::vector<DirectLaunch> orders = {{}, {{.shuffle = 1}}, {{.shuffle = 2, .backwards = true}}, {{}, 3}};
  for (const OpCase& op : cases()) {
    INFO(op.name);
    const auto expected = run_on_host(op);
    for (const DirectLaunch& order : orders) {
      INFO("shuffle " << order.how.shuffle << ", threads " << order.threads);
      expect_equal(run_on_device(op, hosts(op), order), expected);
    }
  }
}

TEST_CASE("every op has the bits of the CPU at level twin on FakeCuda, and nothing it does is a race") {
  const AtLevel twin(ops::CpuLevel::twin);
  fake::install({.seed = 5});
  {
    const auto device = fake::create_fake_device(0, &ops::gpu::fake_blas_lt());
    for (const OpCase& op : all_cases()) {
      INFO(op.name);
      expect_equal(run_on_device(op, hosts(op), {}, *device), run_on_host(op));
    }
  }
  CHECK(fake::races().empty());
  CHECK(fake::reset().empty());
}

TEST_CASE("every op on a device equals the CPU's default level but for rounding") {
  for (const OpCase& op : cases()) {
    INFO(op.name);
    const auto expected = run_on_host(op);
    const auto got = run_on_device(op, hosts(op));
    for (std::size_t i = 0; i < got.size(); ++i) {
      INFO("operand " << i);
      if (got[i].dtype() != DType::f32) {
        CHECK(same_bits(got[i], expected[i]));
        continue;
      }
      double worst = 0, size = 1e-2;
      bool same_kind = true;
      for (std::int64_t k = 0; k < got[i].numel(); ++k) {
        const double x = static_cast<double>(got[i].data<float>()[k]);
        const double y = static_cast<double>(expected[i].data<float>()[k]);
        same_kind = same_kind && std::isnan(x) == std::isnan(y);
        if (std::isnan(x) || std::isnan(y)) continue;
        worst = std::max(worst, std::abs(x - y));
        size = std::max(size, std::abs(y));
      }
      CHECK(same_kind);
      CHECK(worst <= op.tolerance * size);
    }
  }
}

TEST_CASE("with bf16 tensors every op has the results of f32 rounded to bf16, sums for parameters unrounded") {
  fake::install({.seed = 6});
  {
    const auto device = fake::create_fake_device(0, &ops::gpu::fake_blas_lt());
    for (const OpCase& op : all_cases()) {
      if (!op.has_bf16) continue;
      INFO(op.name);
      std::vector<Tensor> narrow, wide;
      std::vector<bool> is_narrow;
      for (const auto& operand : op.operands) {
        is_narrow.push_back(operand.host.dtype() == DType::f32 && !operand.stays_f32);
        narrow.push_back(is_narrow.back() ? narrowed(operand.host) : operand.host);
        wide.push_back(is_narrow.back() ? widened(narrow.back()) : operand.host);
      }
      auto& where = op.product ? *device : direct_device();
      const auto got = run_on_device(op, narrow, {}, where);
      auto expected = run_on_device(op, wide, {}, where);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        if (is_narrow[i]) expected[i] = narrowed(expected[i]);
      }
      expect_equal(got, expected);
    }
  }
  CHECK(fake::races().empty());
  CHECK(fake::reset().empty());
}

TEST_CASE("tensors of two types on a device are refused where kernels need one") {
  auto& device = direct_device();
  const Tensor a = on_device(device, random({4}, 1));
  const Tensor b = on_device(device, narrowed(random({4}, 2)));
  CHECK_THROWS_AS(ops::add(a, b, a), ShapeError);
  CHECK_THROWS_AS(ops::add(b, b, a), ShapeError);
  CHECK_THROWS_AS(ops::cast_to_f32(a, a), ShapeError);
  CHECK_THROWS_AS(ops::add(narrowed(random({4}, 1)), random({4}, 2), random({4}, 3)), ShapeError);  // on the CPU
}

}  // namespace dtrun::runtime::test
