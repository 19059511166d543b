#include "worker_runtime/comm/shm/reduce.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tests/catch.hpp"

using namespace dtrun::runtime;
using namespace dtrun::runtime::shm;

namespace {

float widen(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

// Round to nearest even, by the definition: the nearer of the two neighbours.
std::uint16_t narrow(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  const std::uint32_t rest = bits & 0xffff;
  const auto down = static_cast<std::uint16_t>(bits >> 16);
  return static_cast<std::uint16_t>(down + (rest > 0x8000 || (rest == 0x8000 && down % 2 == 1) ? 1 : 0));
}

template <class T>
T combine(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::product:
      return static_cast<T>(a * b);
    case ReduceOp::max:
      return b > a || b != b ? b : a;
    case ReduceOp::min:
      return b < a || b != b ? b : a;
    default:
      return static_cast<T>(a + b);
  }
}

std::uint64_t fold_integers(ReduceOp op, const std::vector<std::uint64_t>& values, bool is_signed, int bits) {
  const auto wrap = [&](std::uint64_t v) { return bits == 64 ? v : v & ((std::uint64_t{1} << bits) - 1); };
  const auto sign = [&](std::uint64_t v) { return static_cast<std::int64_t>(v << (64 - bits)) >> (64 - bits); };
  std::uint64_t result = values[0];
  for (std::size_t i = 1; i < values.size(); ++i) {
    if (op == ReduceOp::sum || op == ReduceOp::product) {
      result = wrap(combine(op, result, values[i]));
    } else if (is_signed) {
      result = wrap(static_cast<std::uint64_t>(combine(op, sign(result), sign(values[i]))));
    } else {
      result = combine(op, result, values[i]);
    }
  }
  return result;
}

// One element, in rank order, straight from the definition.
void reference(DType dtype, ReduceOp op, const std::vector<const std::byte*>& sources, std::size_t at, std::byte* out) {
  const auto n = static_cast<float>(sources.size());
  if (dtype == DType::f32 || dtype == DType::bf16) {
    const auto read = [&](std::size_t rank) {
      if (dtype == DType::f32) {
        float value;
        std::memcpy(&value, sources[rank] + at * 4, 4);
        return value;
      }
      std::uint16_t bits;
      std::memcpy(&bits, sources[rank] + at * 2, 2);
      return widen(bits);
    };
    float result = read(0);
    for (std::size_t rank = 1; rank < sources.size(); ++rank) result = combine(op, result, read(rank));
    if (op == ReduceOp::avg) result /= n;
    const std::uint16_t rounded = narrow(result);
    std::memcpy(out, dtype == DType::f32 ? static_cast<const void*>(&result) : &rounded, size_of(dtype));
    return;
  }
  std::vector<std::uint64_t> values;
  for (const std::byte* source : sources) {
    std::uint64_t value = 0;
    std::memcpy(&value, source + at * size_of(dtype), size_of(dtype));
    values.push_back(value);
  }
  const std::uint64_t result = fold_integers(op, values, dtype != DType::u8, static_cast<int>(size_of(dtype)) * 8);
  std::memcpy(out, &result, size_of(dtype));
}

std::vector<std::pair<const char*, const Kernels*>> sets() {
  std::vector<std::pair<const char*, const Kernels*>> all{{"chosen", &kernels()}, {"v2", &v2::kKernels}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) all.emplace_back("v3", &v3::kKernels);
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) all.emplace_back("v4", &v4::kKernels);
#endif
  return all;
}

void fill(std::vector<std::byte>& bytes, DType dtype, std::mt19937& random) {
  if (dtype == DType::f32) {
    std::normal_distribution<float> values(0, 100);
    for (std::size_t i = 0; i + 4 <= bytes.size(); i += 4) {
      const float value = values(random);
      std::memcpy(&bytes[i], &value, 4);
    }
  } else if (dtype == DType::bf16) {
    std::normal_distribution<float> values(0, 1);
    for (std::size_t i = 0; i + 2 <= bytes.size(); i += 2) {
      const std::uint16_t value = narrow(values(random));
      std::memcpy(&bytes[i], &value, 2);
    }
  } else {
    for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  }
}

}  // namespace

TEST_CASE("every kernel set gives the bits of the definition, for every type, operation, length and output count") {
  std::mt19937 random(7);
  for (const DType dtype : {DType::f32, DType::bf16, DType::i32, DType::i64, DType::u8}) {
    for (const std::size_t count : {1, 3, 15, 16, 17, 63, 64, 255, 1000, 4099}) {
      for (const int ranks : {1, 2, 3, 5}) {
        const std::size_t bytes = count * size_of(dtype);
        std::vector<std::vector<std::byte>> inputs(static_cast<std::size_t>(ranks), std::vector<std::byte>(bytes));
        std::vector<const std::byte*> sources;
        for (auto& input : inputs) {
          fill(input, dtype, random);
          sources.push_back(input.data());
        }
        for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::max, ReduceOp::min, ReduceOp::product}) {
          if (op == ReduceOp::avg && dtype != DType::f32 && dtype != DType::bf16) continue;
          std::vector<std::byte> expected(bytes);
          for (std::size_t i = 0; i < count; ++i) reference(dtype, op, sources, i, &expected[i * size_of(dtype)]);
          for (const auto& [set, chosen] : sets()) {
            for (const bool stream : {false, true}) {
              std::vector<std::byte> first(bytes + 64), second(bytes + 64);
              std::byte* outputs[2] = {first.data(), second.data()};
              chosen->reduce({dtype, op, ranks, sources.data(), outputs, 2, count, stream});
              INFO(name_of(dtype) << " " << name_of(op) << " count " << count << " ranks " << ranks << " set " << set
                                  << " stream " << stream);
              REQUIRE(std::memcmp(first.data(), expected.data(), bytes) == 0);
              REQUIRE(std::memcmp(second.data(), expected.data(), bytes) == 0);
              REQUIRE(std::all_of(first.begin() + static_cast<std::ptrdiff_t>(bytes), first.end(),
                                  [](auto b) { return b == std::byte{0}; }));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("a reduction may write onto its sources") {
  std::vector<float> a(1000, 1.5F), b(1000, 2.25F);
  const std::byte* sources[2] = {reinterpret_cast<std::byte*>(a.data()), reinterpret_cast<std::byte*>(b.data())};
  std::byte* outputs[2] = {reinterpret_cast<std::byte*>(a.data()), reinterpret_cast<std::byte*>(b.data())};
  for (const auto& [set, chosen] : sets()) {
    a.assign(a.size(), 1.5F);
    b.assign(b.size(), 2.25F);
    chosen->reduce({DType::f32, ReduceOp::sum, 2, sources, outputs, 2, a.size(), false});
    CHECK(a == std::vector<float>(1000, 3.75F));
    CHECK(b == a);
  }
}

TEST_CASE("max and min hand on NaN from any rank, bf16 keeps NaN and infinity") {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& [set, chosen] : sets()) {
    for (const ReduceOp op : {ReduceOp::max, ReduceOp::min}) {
      const float a[3] = {nan, 1, 2}, b[3] = {1, nan, 3};
      float out[3];
      const std::byte* sources[2] = {reinterpret_cast<const std::byte*>(a), reinterpret_cast<const std::byte*>(b)};
      auto* output = reinterpret_cast<std::byte*>(out);
      chosen->reduce({DType::f32, op, 2, sources, &output, 1, 3, false});
      CHECK(std::isnan(out[0]));
      CHECK(std::isnan(out[1]));
      CHECK(out[2] == (op == ReduceOp::max ? 3 : 2));
    }
    const std::uint16_t a[2] = {0x7f81, 0x7f80}, b[2] = {0, 0x3f80};
    std::uint16_t out[2];
    const std::byte* sources[2] = {reinterpret_cast<const std::byte*>(a), reinterpret_cast<const std::byte*>(b)};
    auto* output = reinterpret_cast<std::byte*>(out);
    chosen->reduce({DType::bf16, ReduceOp::sum, 2, sources, &output, 1, 2, false});
    CHECK(std::isnan(widen(out[0])));
    CHECK(out[1] == 0x7f80);
  }
}

TEST_CASE("copies of any length and alignment arrive whole") {
  std::vector<std::byte> from(5000), to(5200);
  std::mt19937 random(3);
  for (auto& byte : from) byte = static_cast<std::byte>(random());
  for (const auto& [set, chosen] : sets()) {
    for (const std::size_t offset : {0, 1, 63}) {
      for (const std::size_t bytes : {0, 1, 64, 300, 4999}) {
        std::fill(to.begin(), to.end(), std::byte{0});
        chosen->copy(to.data() + offset, from.data(), bytes, true);
        REQUIRE(std::memcmp(to.data() + offset, from.data(), bytes) == 0);
        REQUIRE(to[offset + bytes] == std::byte{0});
      }
    }
  }
}
