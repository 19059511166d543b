#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "tests/unit/worker_runtime/kernels/direct_device.hpp"
#include "tests/unit/worker_runtime/ops/support.hpp"
#include "worker_runtime/ops/cross_entropy.hpp"
#include "worker_runtime/ops/elementwise.hpp"
#include "worker_runtime/ops/embedding.hpp"

namespace dtrun::runtime::test {
TEST_CASE("the logarithm of the kernels is within 2 ulp and right at its ends") {
  double worst = 0;
  for (float x = 1e-42F; x < 3e38F; x *= 1.0037F) {
    const double expected = std::log(static_cast<double>(x));
    const auto nearest = static_cast<float>(std::abs(expected));
    const double unit = static_cast<double>(std::nextafter(nearest, INFINITY)) - static_cast<double>(nearest);
    worst = std::max(worst, std::abs(static_cast<double>(kernels::log_of(x)) - expected) / unit);
  }
  CHECK(worst < 2.0);
  CHECK(kernels::log_of(1.0F) == 0.0F);
  CHECK(kernels::log_of(0.0F) == -INFINITY);
  CHECK(kernels::log_of(INFINITY) == INFINITY);
  CHECK(std::isnan(kernels::log_of(-1.0F)));
  CHECK(std::isnan(kernels::log_of(-INFINITY)));
  CHECK(std::isnan(kernels::log_of(NAN)));
}

TEST_CASE("a device names the first wrong id and target in the words of the CPU, once, when it is next waited for") {
  auto& device = direct_device();
  const Tensor table = random({5, 3}, 1), out = empty({2, 3, 3});
  const auto message = [](auto&& f) {
    try {
      f();
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("nothing");
  };
  const Tensor ids = integers({2, 3}, {0, 4, 2, 5, 1, -7});
  const Tensor there = on_device(device, out);
  ops::embedding_forward(on_device(device, ids), on_device(device, table), Tensor(), there);
  const auto expected = message([&] { ops::embedding_forward(ids, table, Tensor(), out); });
  CHECK(expected.find("token id 5 at place 3, expected 0 to 4") != std::string::npos);
  CHECK(message([&] { (void)there.to_host(); }) == expected);
  CHECK(message([&] { (void)there.to_host(); }) == "nothing");
  // A wrong id gives zeros, and no memory outside of the table is read.
  const Tensor rows = there.to_host();
  for (int i = 0; i < 3; ++i) CHECK(rows.data<float>()[9 + i] == 0.0F);

  const Tensor dtable = on_device(device, table);
  ops::embedding_backward_tokens(on_device(device, ids), on_device(device, random({2, 3, 3}, 2)), dtable,
                                 ops::Into::overwrite);
  CHECK(message([&] { device.check_faults(); }) ==
        message([&] { ops::embedding_backward_tokens(ids, out, table, ops::Into::overwrite); }));

  const Tensor logits = random({3, 4}, 3), targets = integers({3}, {1, 9, -100}), loss = empty({1});
  ops::cross_entropy_mean(on_device(device, logits), on_device(device, targets), on_device(device, loss));
  const auto of_target = message([&] { device.check_faults(); });
  CHECK(of_target == message([&] { ops::cross_entropy_mean(logits, targets, loss); }));
  CHECK(of_target.find("target 9 of row 1, expected 0 to 3 or -100") != std::string::npos);
}

TEST_CASE("no kernel wants more shared memory than every GPU has") {
  // Dynamic memory: what a launch says is checked by direct_launch with every op; these are the largest.
  CHECK(kernels::AttentionForward<float, 128>{}.shared_bytes() <= 48 * 1024);
  CHECK(kernels::AttentionForward<float, 256>{}.shared_bytes() <= 48 * 1024);
  CHECK(kernels::AttentionBackwardKeys<float, 64>{}.shared_bytes() <= 48 * 1024);
  CHECK(kernels::AttentionBackwardKeys<float, 256>{}.shared_bytes() <= 48 * 1024);
  CHECK(kernels::EmbeddingBackwardTokens<float>{}.shared_bytes() + 1024 <= 48 * 1024);
}

}  // namespace dtrun::runtime::test
