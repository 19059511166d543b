#include "worker_runtime/data/distributed_sampler.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>

#include "rendezvous/base/env.hpp"
#include "rendezvous/base/error.hpp"
#include "tests/catch.hpp"

using namespace dtrun::runtime;

namespace {

constexpr auto kGolden = DTRUN_SOURCE_DIR "/tests/data/sampler/torch_indices.txt";

std::uint64_t fnv(const std::vector<std::int64_t>& indices) {
  std::uint64_t value = 0xCBF29CE484222325U;
  for (const auto index : indices) {
    for (int byte = 0; byte < 8; ++byte) {
      value = (value ^ (static_cast<std::uint64_t>(index) >> (8 * byte) & 0xFF)) * 0x100000001B3U;
    }
  }
  return value;
}

}  // namespace

TEST_CASE("the sampler gives torch's indices") {
  std::ifstream file(kGolden);
  REQUIRE(file);
  std::string line;
  int cases = 0;
  while (std::getline(file, line)) {
    CAPTURE(line);
    std::istringstream fields(line);
    SamplerOptions options;
    std::int64_t rank = 0, epoch = 0;
    std::size_t count = 0;
    std::uint64_t hash = 0;
    fields >> options.size >> options.replicas >> rank >> options.shuffle >> options.seed >> epoch >>
        options.drop_last >> count >> std::hex >> hash >> std::dec;
    REQUIRE(fields);
    DistributedSampler sampler(options);
    sampler.set_epoch(epoch);
    const auto indices = sampler.indices(rank);
    CHECK(indices.size() == count);
    std::int64_t expected = 0;
    for (std::size_t i = 0; fields >> expected; ++i) CHECK(indices.at(i) == expected);
    CHECK(fnv(indices) == hash);
    ++cases;
  }
  CHECK(cases == 31);
}

TEST_CASE("the golden indices are those of the installed PyTorch") {
  const auto home = dtrun::env::get("HOME").value_or("");
  const auto python = dtrun::env::get("DTRUN_TORCH_PYTHON").value_or(home + "/.cache/dtrun-torch/bin/python");
  if (!std::filesystem::exists(python)) {
    WARN("skipped: no PyTorch at " + python);
    return;
  }
  const auto command = "'" + python + "' " DTRUN_SOURCE_DIR "/tests/parity/make_sampler_golden.py --check " + kGolden;
  CHECK(std::system(command.c_str()) == 0);
}

TEST_CASE("an epoch without drop_last holds every sample, and every replica gets as many") {
  DistributedSampler sampler({103, 8, true, 5, false});
  std::vector<std::int64_t> seen;
  for (int replica = 0; replica < 8; ++replica) {
    const auto indices = sampler.indices(replica);
    CHECK(indices.size() == 13);
    seen.insert(seen.end(), indices.begin(), indices.end());
  }
  std::ranges::sort(seen);
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  std::vector<std::int64_t> all(103);
  std::iota(all.begin(), all.end(), 0);
  CHECK(seen == all);
}

TEST_CASE("going back to an epoch gives its order again") {
  DistributedSampler sampler({50, 2, true, 5, false});
  const auto first = sampler.indices(1);
  sampler.set_epoch(3);
  CHECK(sampler.indices(1) != first);
  sampler.set_epoch(0);
  CHECK(sampler.indices(1) == first);
}

TEST_CASE("impossible samplers are refused") {
  CHECK_THROWS_AS(DistributedSampler({0, 1, true, 0, false}), dtrun::UsageError);
  CHECK_THROWS_AS(DistributedSampler({10, 0, true, 0, false}), dtrun::UsageError);
  CHECK_THROWS_WITH(DistributedSampler({3, 8, true, 0, true}), Catch::Contains("3 samples for 8 replicas"));
}
