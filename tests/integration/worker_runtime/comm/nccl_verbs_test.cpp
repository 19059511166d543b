// Every verb of backend nccl over the fakes against backend shm, bit by bit.
#include "tests/catch.hpp"
#include "tests/support/collective_script.hpp"
#include "tests/support/device_ranks.hpp"

using namespace dtrun;
using namespace dtrun::runtime;
using test::Bytes;
using test::Case;
using test::Place;
using test::Script;

namespace {

void compare(int n, Case now, Place place, const test::DeviceRanks& ranks) {
  const auto expected = test::on_shm(n, now);
  std::vector<Bytes> found(static_cast<std::size_t>(n));
  const auto result = ranks.run(n, [&](ProcessGroup& group, Device& device) {
    Script script(group, &device, place, now);
    script.run();
    found[static_cast<std::size_t>(group.rank())] = std::move(script.results);
  });
  for (const auto& text : result.texts) CHECK(text == "");
  CHECK(result.races.empty());
  CHECK(result.left.empty());
  CHECK((result.leaks.communicators == 0 && result.leaks.registrations == 0 && result.leaks.ids == 0));
  CHECK(result.threads_after == result.threads_before);
  for (std::size_t rank = 0; rank < found.size(); ++rank) {
    REQUIRE(found[rank].size() == expected[rank].size());
    for (std::size_t i = 0; i < found[rank].size(); ++i) {
      INFO("rank " << rank << ", result " << i);
      CHECK(found[rank][i] == expected[rank][i]);
    }
  }
}

}  // namespace

TEST_CASE("all verbs of nccl give the bits of shm, for every type and 1 to 4 ranks") {
  const int n = GENERATE(1, 2, 3, 4);
  for (const DType dtype : {DType::f32, DType::bf16, DType::i32, DType::i64, DType::u8}) {
    CAPTURE(n, name_of(dtype));
    compare(n, {dtype, 1003}, Place::device, {});
  }
}

TEST_CASE("all verbs of nccl with tensors larger than the mailboxes, of one element, and of none") {
  const std::int64_t count = GENERATE(0, 1, 300'001);
  CAPTURE(count);
  compare(3, {DType::f32, count}, Place::device, {});
}

TEST_CASE("tensors of the host go through the device and give the same bits") {
  compare(GENERATE(2, 3), {GENERATE(DType::f32, DType::i64), 1003}, Place::host, {});
}

TEST_CASE("nccl under adversarial orders of streams: no race, the same bits") {
  const auto strategy = GENERATE(fake::Strategy::random, fake::Strategy::late, fake::Strategy::starve);
  const auto seed = static_cast<std::uint64_t>(GENERATE(range(1, 9)));
  test::DeviceRanks ranks;
  ranks.cuda.strategy = strategy;
  ranks.cuda.seed = seed;
  ranks.cuda.starved = static_cast<int>(seed % 6);
  ranks.options.checked_calls = seed % 2 == 0 ? 0 : 8;
  CAPTURE(seed, static_cast<int>(strategy));
  compare(2, {DType::bf16, 777}, Place::device, ranks);
}

TEST_CASE("nccl whose launches take their time, without split, without memory of its own") {
  test::DeviceRanks ranks;
  ranks.nccl.launch_polls = 2;
  ranks.nccl.init_polls = 5;
  ranks.nccl.has_split = GENERATE(true, false);
  ranks.nccl.has_memory = false;
  compare(2, {DType::f32, 100}, Place::device, ranks);
}
