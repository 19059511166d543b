#include "worker_runtime/data/batch_stream.hpp"

#include <algorithm>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"

using namespace dtrun::runtime;

namespace {

const std::string kText = [] {
  std::string text;
  for (int i = 0; i < 41; ++i) text += static_cast<char>('0' + i);
  return text;
}();

TokenDataset dataset() { return TokenDataset::from_text(kText, 2, "numbers"); }  // 20 samples

BatchPlan plan(std::int64_t batch, std::int64_t world, std::int64_t micro_batches) {
  return {batch, world, micro_batches, 256, 3, true};
}

}  // namespace

TEST_CASE("n ranks with one micro-batch and one rank with n see the same micro-batches in the same order") {
  const auto data = dataset();
  for (const std::int64_t n : {2, 4}) {
    BatchStream ranks(data, plan(2, n, 1));
    BatchStream accumulating(data, plan(2, 1, n));
    for (std::int64_t step = 0; step < 30; ++step) {
      for (std::int64_t i = 0; i < n; ++i) {
        const auto many = ranks.sample_ids(step, ranks.plan().stream(i, 0));
        const auto one = accumulating.sample_ids(step, accumulating.plan().stream(0, i));
        CHECK(many == one);
      }
    }
  }
}

TEST_CASE("in a step a rank reads what torch's sampler of that world gives it") {
  const auto data = dataset();
  BatchStream stream(data, plan(1, 2, 2));
  DistributedSampler torch({data.size(), 2, true, 3, false});
  for (std::int64_t step = 0; step < 5; ++step) {
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      std::vector<std::int64_t> ids;
      for (std::int64_t m = 0; m < 2; ++m) ids.push_back(stream.sample_ids(step, stream.plan().stream(rank, m)).at(0));
      CHECK(ids == std::vector<std::int64_t>{torch.at(rank, 2 * step), torch.at(rank, 2 * step + 1)});
    }
  }
}

TEST_CASE("a batch may end one epoch and begin the next") {
  const auto data = dataset();
  BatchStream stream(data, plan(8, 1, 1));  // 20 samples per epoch
  DistributedSampler torch({data.size(), 1, true, 3, false});
  const auto ids = stream.sample_ids(2, 0);  // positions 16..23
  for (std::size_t i = 0; i < 4; ++i) CHECK(ids[i] == torch.at(0, 16 + static_cast<std::int64_t>(i)));
  torch.set_epoch(1);
  for (std::size_t i = 4; i < 8; ++i) CHECK(ids[i] == torch.at(0, static_cast<std::int64_t>(i) - 4));
}

TEST_CASE("targets are the inputs one token later, and the hash names the samples") {
  const auto data = dataset();
  BatchStream stream(data, plan(3, 2, 1));
  std::vector<std::int32_t> inputs(6), targets(6), others(6);
  const auto hash = stream.read(4, 1, inputs, targets);
  for (std::size_t row = 0; row < 3; ++row) {
    CHECK(targets[2 * row] == inputs[2 * row + 1]);
    CHECK(targets[2 * row + 1] == inputs[2 * row] + 2);  // kText counts up
  }
  CHECK(stream.read(4, 1, others, targets) == hash);
  CHECK(others == inputs);
  CHECK(stream.read(4, 0, others, targets) != hash);
  CHECK(stream.read(4, 1, others, targets, 1) != hash);
}

TEST_CASE("a data set smaller than one global batch is enough") {
  const auto data = TokenDataset::from_text("abc", 2, "tiny");
  BatchStream stream(data, plan(2, 4, 1));
  CHECK(stream.sample_ids(7, 3) == std::vector<std::int64_t>{0, 0});
}

TEST_CASE("impossible plans are refused") {
  const auto data = dataset();
  CHECK_THROWS_AS(BatchStream(data, plan(0, 1, 1)), dtrun::UsageError);
  CHECK_THROWS_AS(BatchStream(data, plan(1, 1, 0)), dtrun::UsageError);
}
