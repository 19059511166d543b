#include "tests/unit/worker_runtime/kernels/direct_device.hpp"

#include <array>

#include "tests/catch.hpp"
#include "tests/unit/worker_runtime/ops/support.hpp"
#include "worker_runtime/optim/clip.hpp"

namespace dtrun::runtime::test {
namespace {

std::array<std::byte, sizeof(SquareSum)> bytes_of(const SquareSum& sum) {
  std::array<std::byte, sizeof(SquareSum)> bytes;
  std::memcpy(bytes.data(), &sum, sizeof sum);
  return bytes;
}

}  // namespace

TEST_CASE("the exact sum of squares of tensors on a device has the limbs of the host's") {
  auto& device = direct_device();
  std::vector<Tensor> host, there;
  for (const std::int64_t n : {0, 1, 511, 513, 70000, 200000}) {
    const Tensor x = random({n}, static_cast<std::uint64_t>(n), 3.0F);
    for (std::int64_t i = 0; i < n; i += 37) x.data<float>()[i] *= 1e25F;
    for (std::int64_t i = 0; i < n; i += 41) x.data<float>()[i] *= 1e-25F;
    host.push_back(x);
    there.push_back(on_device(device, x));
  }
  SquareSum expected, together, apart, mixed;
  for (const Tensor& x : host) expected.add(std::span<const float>(x.span<float>()));
  together.add(there);
  for (const Tensor& x : there) apart.add(x);
  mixed.add(std::vector<Tensor>{host[4], there[5], there[3], host[2], Tensor::abstract({5}, DType::f32), host[1]});
  CHECK(expected.norm() > 1e25);
  CHECK(bytes_of(together) == bytes_of(expected));
  CHECK(bytes_of(apart) == bytes_of(expected));
  CHECK(bytes_of(mixed) == bytes_of(expected));
  for (const float bad : {INFINITY, NAN}) {
    const Tensor x = random({70000}, 1);
    x.data<float>()[69000] = bad;
    SquareSum sum;
    sum.add(on_device(device, x));
    CHECK(std::isnan(sum.norm()) == std::isnan(bad));
    CHECK(!std::isfinite(sum.norm()));
  }
}

}  // namespace dtrun::runtime::test
