// Every collective against its definition: sizes from nothing to several staging chunks, 1 to 4 ranks, all element
// types, tensors in shared memory and outside, ranks as threads; then the same as processes.
#include <cstring>
#include <random>

#include "tests/catch.hpp"
#include "tests/support/run_ranks.hpp"

using namespace dtrun;
using namespace dtrun::runtime;
using test::expect;

namespace {

enum class Memory { shared, outside, mixed };

struct Case {
  DType dtype;
  std::int64_t count;
  Memory memory;
};

// Element i of what rank `rank` puts in: small numbers, so that every type holds sums of four exactly, except f32,
// where rounding and order matter.
float value_of(int rank, std::int64_t i, DType dtype) {
  std::uint32_t x = static_cast<std::uint32_t>(i) * 2654435761U + static_cast<std::uint32_t>(rank) * 40503U + 12345U;
  x ^= x >> 15;
  x *= 2246822519U;
  x ^= x >> 13;
  return dtype == DType::f32 ? static_cast<float>(x) * 1e-3F - 2e6F : static_cast<float>(x % 16);
}

void write_element(const Tensor& tensor, std::int64_t i, float value) {
  const auto at = static_cast<std::size_t>(i);
  switch (tensor.dtype()) {
    case DType::f32:
      tensor.span<float>()[at] = value;
      break;
    case DType::bf16:
      tensor.span<bfloat16>()[at].bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
      break;
    case DType::i32:
      tensor.span<std::int32_t>()[at] = static_cast<std::int32_t>(value);
      break;
    case DType::i64:
      tensor.span<std::int64_t>()[at] = static_cast<std::int64_t>(value);
      break;
    case DType::u8:
      tensor.span<std::uint8_t>()[at] = static_cast<std::uint8_t>(value);
      break;
  }
}

float read_element(const Tensor& tensor, std::int64_t i) {
  const auto at = static_cast<std::size_t>(i);
  switch (tensor.dtype()) {
    case DType::f32:
      return tensor.span<float>()[at];
    case DType::bf16:
      return std::bit_cast<float>(static_cast<std::uint32_t>(tensor.span<bfloat16>()[at].bits) << 16);
    case DType::i32:
      return static_cast<float>(tensor.span<std::int32_t>()[at]);
    case DType::i64:
      return static_cast<float>(tensor.span<std::int64_t>()[at]);
    case DType::u8:
      return static_cast<float>(tensor.span<std::uint8_t>()[at]);
  }
  return 0;
}

class Rank {
 public:
  Rank(ProcessGroup& group, const Case& now) : group_(group), case_(now), arena_(MemoryTag::work, account_) {}

  Tensor make(std::int64_t count) {
    const bool shared = case_.memory == Memory::shared || (case_.memory == Memory::mixed && group_.rank() == 0);
    return shared ? group_.allocate({count}, case_.dtype) : Tensor::empty({count}, case_.dtype, arena_);
  }
  Tensor filled(std::int64_t count) {
    const Tensor tensor = make(count);
    for (std::int64_t i = 0; i < count; ++i) write_element(tensor, i, value_of(group_.rank(), i, case_.dtype));
    return tensor;
  }
  float sum(std::int64_t i) const {
    float total = value_of(0, i, case_.dtype);
    for (int rank = 1; rank < group_.size(); ++rank) total += value_of(rank, i, case_.dtype);
    return total;
  }
  template <class Expected>
  void check(const char* verb, const Tensor& tensor, Expected expected) {
    for (std::int64_t i = 0; i < tensor.numel(); ++i) {
      const float found = read_element(tensor, i);
      if (found != expected(i)) {
        throw std::runtime_error(std::string(verb) + ": element " + std::to_string(i) + " of " +
                                 std::to_string(tensor.numel()) + " is " + std::to_string(found) + ", expected " +
                                 std::to_string(expected(i)));
      }
    }
  }

  void reductions() {
    const int n = group_.size();
    const std::int64_t count = case_.count;
    Tensor tensor = filled(count);
    group_.all_reduce(tensor);
    check("all_reduce sum", tensor, [&](auto i) { return sum(i); });
    tensor = filled(count);
    group_.all_reduce(tensor, ReduceOp::max);
    check("all_reduce max", tensor, [&](auto i) {
      float result = value_of(0, i, case_.dtype);
      for (int rank = 1; rank < n; ++rank) result = std::max(result, value_of(rank, i, case_.dtype));
      return result;
    });
    if (case_.dtype == DType::f32) {
      tensor = filled(count);
      group_.all_reduce(tensor, ReduceOp::avg);
      check("all_reduce avg", tensor, [&](auto i) { return sum(i) / static_cast<float>(n); });
    }
    for (int root = 0; root < n; ++root) {
      tensor = filled(count);
      group_.reduce(tensor, root);
      check("reduce", tensor,
            [&](auto i) { return group_.rank() == root ? sum(i) : value_of(group_.rank(), i, case_.dtype); });
    }
    const Tensor input = filled(count * n);
    const Tensor output = make(count);
    group_.reduce_scatter(output, input);
    check("reduce_scatter", output, [&](auto i) { return sum(group_.rank() * count + i); });
    const Tensor own = input.narrow(group_.rank() * count, count);
    group_.reduce_scatter(own, input);
    check("reduce_scatter in place", own, [&](auto i) { return sum(group_.rank() * count + i); });
  }

  void copies() {
    const int n = group_.size();
    const int me = group_.rank();
    const std::int64_t count = case_.count;
    const Tensor input = filled(count);
    const Tensor whole = make(count * n);
    const auto gathered = [&](auto i) { return value_of(static_cast<int>(i / count), i % count, case_.dtype); };
    group_.all_gather(whole, input);
    check("all_gather", whole, gathered);
    const Tensor in_place = make(count * n);
    in_place.narrow(me * count, count).copy_from(input);
    group_.all_gather(in_place, in_place.narrow(me * count, count));
    check("all_gather in place", in_place, gathered);
    for (int root = 0; root < n; ++root) {
      const Tensor tensor = filled(count);
      group_.broadcast(tensor, root);
      check("broadcast", tensor, [&](auto i) { return value_of(root, i, case_.dtype); });
      whole.zero();
      group_.gather(me == root ? whole : Tensor(), input, root);
      check("gather", whole, [&](auto i) { return me == root ? gathered(i) : 0; });
      const Tensor parts = filled(count * n);
      const Tensor part = make(count);
      group_.scatter(part, me == root ? parts : Tensor(), root);
      check("scatter", part, [&](auto i) { return value_of(root, me * count + i, case_.dtype); });
    }
    const Tensor parts = filled(count * n);
    group_.all_to_all(whole, parts);
    check("all_to_all", whole,
          [&](auto i) { return value_of(static_cast<int>(i / count), me * count + i % count, case_.dtype); });
    group_.barrier();
  }

 private:
  ProcessGroup& group_;
  Case case_;
  MemoryAccount account_;
  Arena arena_;
};

void all_verbs(ProcessGroup& group, const std::vector<DType>& dtypes, const std::vector<std::int64_t>& counts) {
  for (const DType dtype : dtypes) {
    for (const std::int64_t count : counts) {
      for (const Memory memory : {Memory::shared, Memory::outside, Memory::mixed}) {
        Rank rank(group, {dtype, count, memory});
        rank.reductions();
        rank.copies();
      }
    }
  }
}

const std::vector<DType> kAllTypes{DType::f32, DType::bf16, DType::i32, DType::i64, DType::u8};

}  // namespace

TEST_CASE("every verb gives what its definition says, ranks as threads") {
  const std::string backend = GENERATE("shm", "gloo");
  const int n = GENERATE(1, 2, 3, 4);
  CAPTURE(backend, n);
  const auto results = test::run_ranks(
      n,
      [](ProcessGroup& group) {
        all_verbs(group, kAllTypes, {0, 1, 2, 7, 1000, 8191});
        all_verbs(group, {DType::f32}, {20'003});
      },
      {}, backend);
  for (const auto& result : results) CHECK(result == "");
}

TEST_CASE("every verb gives what its definition says, ranks as processes, up to many chunks") {
  const std::string backend = GENERATE("shm", "gloo");
  const int n = GENERATE(2, 3, 4);
  CAPTURE(backend, n);
  test::RankProcesses processes(
      n,
      [](ProcessGroup& group) {
        all_verbs(group, kAllTypes, {0, 1, 33, 5001});
        all_verbs(group, {DType::f32}, {300'001});
      },
      {}, backend);
  for (int rank = 0; rank < n; ++rank) CHECK(processes.wait(rank, std::chrono::seconds(100)) == "");
}

TEST_CASE("tensors beyond the first segment are found by the others, and results beyond the caches are right") {
  test::RankProcesses processes(2, [](ProcessGroup& group) {
    constexpr std::int64_t count = 20'000'003;  // 80 MB: more than the first segment holds
    const Tensor tensor = group.allocate({count}, DType::f32);
    for (int round = 0; round < 2; ++round) {
      const auto values = tensor.span<float>();
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>((i * 7 + 1) % 1000 + (group.rank() == 0 ? 1 : 2));
      group.all_reduce(tensor);
      for (std::size_t i = 0; i < values.size(); ++i) {
        expect(values[i] == static_cast<float>((i * 7 + 1) % 1000 * 2 + 3), "the sum in every element");
      }
    }
    const Tensor second = group.allocate({count}, DType::f32);
    second.zero();
    if (group.rank() == 0) second.copy_from(tensor);
    group.broadcast(second);
    expect(std::memcmp(second.raw(), tensor.raw(), tensor.bytes()) == 0, "the elements of rank 0");
  });
  for (int rank = 0; rank < 2; ++rank) CHECK(processes.wait(rank, std::chrono::seconds(60)) == "");
}

TEST_CASE("a sum has the same bits whatever the size, the memory and the number of operations it is cut into") {
  const std::string backend = GENERATE("shm", "gloo");
  const auto results = test::run_ranks(
      4,
      [](ProcessGroup& group) {
        constexpr std::int64_t count = 300'000;
        MemoryAccount account;
        Arena arena(MemoryTag::work, account);
        const auto fill = [&](const Tensor& tensor) {
          for (std::int64_t i = 0; i < count; ++i) write_element(tensor, i, value_of(group.rank(), i, DType::f32));
        };
        const Tensor whole = group.allocate({count}, DType::f32);
        fill(whole);
        group.all_reduce(whole);
        for (const std::int64_t piece : {std::int64_t{100}, std::int64_t{3000}, std::int64_t{77'777}}) {
          for (const Tensor& cut : {group.allocate({count}, DType::f32), Tensor::empty({count}, DType::f32, arena)}) {
            fill(cut);
            for (std::int64_t at = 0; at < count; at += piece)
              group.all_reduce(cut.narrow(at, std::min(piece, count - at)));
            expect(std::memcmp(cut.raw(), whole.raw(), whole.bytes()) == 0,
                   "equal bits in pieces of " + std::to_string(piece));
          }
        }
      },
      {}, backend);
  for (const auto& result : results) CHECK(result == "");
}
