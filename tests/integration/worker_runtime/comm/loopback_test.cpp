// Ranks that share one device: the bits of shm, under every order of the streams, and what a rank that is lost or errs
// does to the others.
#include "tests/catch.hpp"
#include "tests/support/collective_script.hpp"
#include "tests/support/device_ranks.hpp"

using namespace dtrun;
using namespace dtrun::runtime;
using Catch::Contains;
using test::Bytes;
using test::Case;
using test::Place;
using test::Script;

namespace {

void compare(int n, Case now, test::DeviceRanks ranks) {
  ranks.loopback = true;
  const auto expected = test::on_shm(n, now);
  std::vector<Bytes> found(static_cast<std::size_t>(n));
  const auto result = ranks.run(n, [&](ProcessGroup& group, Device& device) {
    Script script(group, &device, Place::device, now);
    script.run();
    found[static_cast<std::size_t>(group.rank())] = std::move(script.results);
  });
  for (const auto& text : result.texts) CHECK(text == "");
  CHECK(result.races.empty());
  CHECK(result.left.empty());
  CHECK(found == expected);
}

}  // namespace

TEST_CASE("ranks that share a device have the bits of shm in every verb") {
  const int n = GENERATE(1, 2, 3, 5);
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  CAPTURE(n, name_of(dtype));
  for (const std::int64_t count : {0, 1, 1003}) compare(n, {dtype, count}, {});
}

TEST_CASE("ranks that share a device under adversarial orders of streams: no race, the same bits") {
  test::DeviceRanks ranks;
  ranks.cuda.strategy = GENERATE(fake::Strategy::random, fake::Strategy::late, fake::Strategy::starve);
  ranks.cuda.seed = static_cast<std::uint64_t>(GENERATE(range(1, 9)));
  ranks.cuda.starved = static_cast<int>(ranks.cuda.seed % 8);
  CAPTURE(ranks.cuda.seed, static_cast<int>(ranks.cuda.strategy));
  compare(3, {DType::f32, 500}, ranks);
}

TEST_CASE("splits of ranks that share a device meet among themselves, and host tensors go through the device") {
  test::DeviceRanks ranks;
  ranks.loopback = true;
  const auto result = ranks.run(4, [](ProcessGroup& group, Device&) {
    const std::vector<int> even{0, 2}, odd{3, 1};
    const auto half = group.split(group.rank() % 2 == 0 ? even : odd, "half");
    const auto none = group.split(group.rank() == 0 ? std::vector<int>{0} : std::vector<int>{}, "first");
    test::expect((none != nullptr) == (group.rank() == 0), "a group for its ranks only");
    MemoryAccount account;
    Arena arena(MemoryTag::work, account);
    const Tensor mine = Tensor::empty({1}, DType::f32, arena), all = Tensor::empty({2}, DType::f32, arena);
    mine.data<float>()[0] = static_cast<float>(group.rank());
    half->all_gather(all, mine);
    const std::vector<float> expected = group.rank() % 2 == 0 ? std::vector{0.0F, 2.0F} : std::vector{3.0F, 1.0F};
    test::expect(std::ranges::equal(all.span<float>(), expected), "the numbers of its half");
    half->all_reduce(mine);
    test::expect(mine.data<float>()[0] == expected[0] + expected[1], "the sum of its half");
  });
  for (const auto& text : result.texts) CHECK(text == "");
  CHECK(result.left.empty());
}

TEST_CASE("a rank that errs, leaves or calls something else ends the waits of those that share its device") {
  test::DeviceRanks ranks;
  ranks.loopback = true;
  ranks.options.timeout = std::chrono::milliseconds(300);
  const std::string how = GENERATE("leaves", "is late", "differs", "leaves before it receives");
  const auto result = ranks.run(3, [&](ProcessGroup& group, Device& device) {
    Arena arena(MemoryTag::work, *group.account(), &device);
    const Tensor tensor = Tensor::zeros({8}, DType::f32, arena);
    group.set_action("step 1, REDUCE a");
    group.all_reduce(tensor);
    if (group.rank() == 1 && how == "leaves") throw std::runtime_error("its own error");
    if (group.rank() == 1 && how == "is late") std::this_thread::sleep_for(std::chrono::milliseconds(900));
    if (how == "leaves before it receives") {
      if (group.rank() == 0) group.send(tensor, 1);
      if (group.rank() == 1) throw std::runtime_error("its own error");
      return;
    }
    const bool other = group.rank() == 1 && how == "differs";
    other ? group.all_reduce(tensor.narrow(0, 4)) : group.all_reduce(tensor);
  });
  CAPTURE(how);
  if (how == "leaves") CHECK_THAT(result.texts[0], Contains("rank 1 left the group"));
  if (how == "is late") CHECK_THAT(result.texts[0], Contains("missing: rank 1") || Contains("missing: rank"));
  if (how == "differs") {
    for (const auto& text : result.texts)
      CHECK_THAT(text, Contains("called different operations") && Contains("rank 1: all_reduce sum f32 x 4"));
  }
  if (how == "leaves before it receives") CHECK_THAT(result.texts[0], Contains("rank 1 left the group"));
  CHECK(result.time < std::chrono::seconds(3));
}
