// Where a run goes on in its data with any number of ranks, and the end of an epoch.
#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"
#include "worker_runtime/data/batch_stream.hpp"

using namespace dtrun::runtime;
using Catch::Contains;

namespace {

// Sample i is the token i (mod 251) and the next one.
TokenDataset numbers(std::int64_t samples) {
  static std::map<std::int64_t, std::string> texts;
  auto& text = texts[samples];
  for (std::int64_t i = 0; i <= samples && text.size() <= static_cast<std::size_t>(samples); ++i) {
    text += static_cast<char>(i % 251);
  }
  return TokenDataset::from_text(text, 1, "numbers");
}

BatchPlan plan(std::int64_t batch, std::int64_t world, std::int64_t micro_batches, LastBatch last = LastBatch::wrap) {
  return {batch, world, micro_batches, 256, 7, true, last};
}

// All samples of a step, in the order in which they are taken.
std::vector<std::int64_t> step_of(BatchStream& stream, std::int64_t step) {
  const auto& plan = stream.plan();
  std::vector<std::vector<std::int64_t>> streams;
  for (std::int64_t i = 0; i < plan.streams(); ++i) streams.push_back(stream.sample_ids(step, i));
  std::vector<std::int64_t> ids;
  for (std::size_t row = 0; row < static_cast<std::size_t>(plan.batch_size); ++row) {
    for (const auto& of_stream : streams) ids.push_back(of_stream[row]);
  }
  return ids;
}

std::vector<std::int64_t> order_of(std::int64_t samples, std::int64_t epoch) {
  return random_permutation(samples, 7 + static_cast<std::uint64_t>(epoch));
}

// What each epoch was given by a run whose layout changes every few steps.
struct Run {
  std::map<std::int64_t, std::vector<std::int64_t>> by_epoch;
  std::int64_t most_streams = 0;
  std::int64_t most_of_step = 0;
  std::int64_t not_counted = 0;
};

Run changing_run(const TokenDataset& data, LastBatch last, std::mt19937& random, std::int64_t epochs) {
  Run run;
  DataPosition position;
  std::int64_t step = 0;
  while (position.epoch < epochs) {
    const auto layout = plan(1 + random() % 3, 1 + random() % 5, 1 + random() % 3, last);
    if (last == LastBatch::drop && layout.step_samples() > data.size()) continue;
    BatchStream stream(data, layout, position, step);
    run.most_streams = std::max(run.most_streams, layout.streams());
    run.most_of_step = std::max(run.most_of_step, layout.step_samples());
    for (auto steps = 1 + random() % 4; steps > 0 && position.epoch < epochs; --steps, ++step) {
      // A step may begin in one epoch and end in the next: the positions on both sides say how many samples are whose.
      const auto ids = step_of(stream, step);
      const auto next = stream.position_after(step);
      const std::int64_t left = std::count_if(ids.begin(), ids.end(), [](std::int64_t id) { return id >= 0; });
      CHECK(left == stream.real_samples(step));
      run.not_counted += static_cast<std::int64_t>(ids.size()) - left;
      const bool mixes = last == LastBatch::wrap && next.epoch > position.epoch;
      const std::int64_t of_next = mixes ? next.samples : 0;
      const bool nothing_whole = last == LastBatch::drop && data.size() - position.samples < layout.step_samples();
      const auto epoch = position.epoch + (nothing_whole ? 1 : 0);
      for (std::size_t i = 0; i < ids.size(); ++i) {
        const bool later = static_cast<std::int64_t>(ids.size() - i) <= of_next;
        if (ids[i] >= 0) run.by_epoch[later ? next.epoch : epoch].push_back(ids[i]);
      }
      position = next;
    }
  }
  run.by_epoch.erase(epochs);
  return run;
}

}  // namespace

TEST_CASE("with the same streams a run goes on as if it had never stopped, in whatever step it did") {
  for (const auto last : {LastBatch::wrap, LastBatch::drop, LastBatch::pad}) {
    for (const std::int64_t samples : {23, 24, 60}) {
      const auto data = numbers(samples);
      const auto layout = plan(2, 3, 2, last);
      BatchStream whole(data, layout);
      for (std::int64_t stop = 0; stop < 12; ++stop) {
        BatchStream again(data, layout, whole.position_after(stop), stop + 1);
        for (std::int64_t step = stop + 1; step < 20; ++step) {
          CHECK(step_of(again, step) == step_of(whole, step));
          CHECK(again.position_after(step) == whole.position_after(step));
          CHECK(again.real_samples(step) == whole.real_samples(step));
        }
        CHECK(again.first_step_of(5) == std::max(stop + 1, whole.first_step_of(5)));
      }
    }
  }
}

TEST_CASE("ranks and micro-batches may be exchanged for each other without a change of data") {
  const auto data = numbers(31);
  BatchStream ranks(data, plan(2, 4, 1));
  BatchStream one(data, plan(2, 1, 4), ranks.position_after(2), 3);
  for (std::int64_t step = 3; step < 20; ++step) CHECK(step_of(one, step) == step_of(ranks, step));
}

TEST_CASE("after a change the rest of the epoch is dealt to the new streams, and the next epoch is torch's") {
  const auto data = numbers(20);
  BatchStream four(data, plan(1, 4, 1));
  const auto position = four.position_after(1);
  CHECK(position == DataPosition{0, 8, 20, 7});
  BatchStream three(data, plan(1, 3, 1), position, 2);
  auto order = order_of(20, 0);
  std::vector<std::int64_t> dealt;
  for (std::int64_t step = 2; step < 6; ++step) {
    const auto ids = step_of(three, step);
    dealt.insert(dealt.end(), ids.begin(), ids.end());
  }
  CHECK(dealt == std::vector<std::int64_t>(order.begin() + 8, order.end()));
  DistributedSampler torch({20, 3, true, 7, false});
  torch.set_epoch(1);
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    for (std::int64_t i = 0; i < torch.num_samples(); ++i) {
      CHECK(three.sample_ids(6 + i, rank) == std::vector<std::int64_t>{torch.at(rank, i)});
    }
  }
}

TEST_CASE("however often the layout changes, each sample comes exactly once in an epoch") {
  std::mt19937 random(20261130);
  for (int round = 0; round < 60; ++round) {
    const std::int64_t samples = 46 + random() % 80;
    const auto data = numbers(samples);
    for (const auto last : {LastBatch::wrap, LastBatch::drop, LastBatch::pad}) {
      const auto run = changing_run(data, last, random, 4);
      CAPTURE(round, samples, static_cast<int>(last));
      REQUIRE(run.by_epoch.size() == 4);
      for (const auto& [epoch, ids] : run.by_epoch) {
        CAPTURE(epoch);
        const auto order = order_of(samples, epoch);
        const auto taken = std::min(ids.size(), order.size());
        // The order of the epoch, from its beginning, without a gap and without a return.
        CHECK(std::equal(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(taken), order.begin()));
        const auto beyond = static_cast<std::int64_t>(ids.size()) - samples;
        if (last == LastBatch::wrap) CHECK((beyond >= 0 && beyond < run.most_streams));
        if (last == LastBatch::pad) CHECK(beyond == 0);
        if (last == LastBatch::drop) CHECK((beyond <= 0 && -beyond < run.most_of_step));
        for (std::int64_t i = 0; i < beyond; ++i)
          CHECK(ids[static_cast<std::size_t>(samples + i)] == order[static_cast<std::size_t>(i)]);
      }
      CHECK((run.not_counted == 0 || last == LastBatch::pad));
    }
  }
}

TEST_CASE("what fills up the last step has no targets") {
  const auto data = numbers(5);
  BatchStream stream(data, plan(2, 2, 1, LastBatch::pad));
  CHECK(stream.real_samples(0) == 4);
  CHECK(stream.real_samples(1) == 1);
  CHECK(stream.real_samples(2) == 4);
  std::vector<std::int32_t> inputs(2), targets(2);
  stream.read(1, 0, inputs, targets);
  const auto id = static_cast<std::int32_t>(order_of(5, 0).back());
  CHECK(inputs == std::vector<std::int32_t>{id, 0});
  CHECK(targets == std::vector<std::int32_t>{id + 1, BatchStream::kNoTarget});
  stream.read(1, 1, inputs, targets);
  CHECK(targets == std::vector<std::int32_t>(2, BatchStream::kNoTarget));
}

TEST_CASE("the steps of some epochs") {
  const auto data = numbers(20);
  const auto steps = [&](std::int64_t epochs, LastBatch last) {
    return BatchStream(data, plan(2, 3, 1, last)).first_step_of(epochs);  // 6 in a step
  };
  CHECK(steps(0, LastBatch::wrap) == 0);
  CHECK(steps(1, LastBatch::wrap) == 4);  // 21 samples with torch's padding
  CHECK(steps(2, LastBatch::wrap) == 7);
  CHECK(steps(1, LastBatch::drop) == 3);
  CHECK(steps(2, LastBatch::drop) == 6);
  CHECK(steps(1, LastBatch::pad) == 4);
  CHECK(steps(2, LastBatch::pad) == 8);
  BatchStream later(data, plan(2, 3, 1), {2, 0, 20, 7}, 100);
  CHECK(later.first_step_of(1) == 100);
  CHECK(later.first_step_of(3) == 104);
}

TEST_CASE("positions that this data cannot have are refused") {
  const auto data = numbers(20);
  const auto start = [&](DataPosition position) { BatchStream(data, plan(1, 2, 1), position, 5); };
  CHECK_NOTHROW(start({3, 19, 20, 7}));
  CHECK_THROWS_WITH(start({0, 4, 21, 7}), Contains("data set of 21 samples, this one has 20"));
  CHECK_THROWS_WITH(start({0, 4, 20, 8}), Contains("seed 8, this run has seed 7"));
  CHECK_THROWS_WITH(start({0, 20, 20, 7}), Contains("sample 20 of epoch 0"));
  CHECK_THROWS_AS(start({0, -1, 20, 7}), dtrun::UsageError);
  CHECK_THROWS_AS(start({-1, 0, 20, 7}), dtrun::UsageError);
  auto in_order = plan(1, 2, 1);
  in_order.shuffle = false;
  CHECK_NOTHROW(BatchStream(data, in_order, {0, 4, 20, 8}, 2));
}

TEST_CASE("a step larger than the data set: drop has nothing, pad fills it up") {
  const auto data = numbers(3);
  CHECK_THROWS_WITH(BatchStream(data, plan(2, 2, 1, LastBatch::drop)), Contains("3 samples and 4 in a step"));
  BatchStream padded(data, plan(2, 2, 1, LastBatch::pad));
  for (std::int64_t step = 0; step < 3; ++step) {
    auto ids = step_of(padded, step);
    CHECK(ids.back() == -1);
    ids.pop_back();
    CHECK(ids == order_of(3, step));
  }
}
