// Programs made at random: what the check finds no race in has one result, whatever the order.
#include <optional>
#include <random>
#include <set>

#include "tests/unit/worker_runtime/device/fake/support.hpp"

namespace dtrun::runtime::test {
namespace {

constexpr int kStreams = 3, kEvents = 3, kBuffers = 4, kSteps = 40;

enum class Kind { add, clear, copy, record, wait, stream_synchronize, device_synchronize };
struct Step {
  Kind kind;
  int stream, event, a, b, c;
};
using Program = std::vector<Step>;

Program random_program(std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  const auto draw = [&](int below) { return static_cast<int>(engine() % static_cast<unsigned>(below)); };
  constexpr Kind kKinds[] = {Kind::add,    Kind::add,    Kind::add,  Kind::clear, Kind::copy, Kind::copy,
                             Kind::record, Kind::record, Kind::wait, Kind::wait,  Kind::wait, Kind::stream_synchronize};
  Program program;
  for (int i = 0; i < kSteps; ++i) {
    const int from = draw(kBuffers);
    program.push_back({kKinds[draw(12)], draw(kStreams), draw(kEvents), from, draw(kBuffers),
                       (from + 1 + draw(kBuffers - 1)) % kBuffers});
  }
  return program;
}

struct Outcome {
  std::optional<std::size_t> raced_at;
  std::vector<float> values;
};

Outcome run(const Program& program, const fake::FakeCudaConfig& config) {
  Accelerator accelerator(config);
  TestStream streams[kStreams];
  TestEvent events[kEvents];
  Floats buffers[kBuffers] = {Floats(8), Floats(8), Floats(8), Floats(8)};
  for (int i = 0; i < kBuffers; ++i) {
    const std::vector<float> first(8, static_cast<float>(i + 1));
    ok(api().memcpy_async(buffers[i].data, first.data(), 32, cuda::CopyKind::host_to_device, streams[0].handle));
  }
  ok(api().device_synchronize());
  for (std::size_t i = 0; i < program.size(); ++i) {
    const auto [kind, s, e, a, b, c] = program[i];
    const auto step = [&, kind = kind, s = s, e = e, a = a, b = b, c = c] {
      const auto stream = streams[s].handle;
      switch (kind) {
        case Kind::add:
          return add(buffers[a], buffers[b], buffers[c], stream);
        case Kind::clear:
          return set(buffers[c], 0, stream);
        case Kind::copy:
          return api().memcpy_async(buffers[c].data, buffers[a].data, 32, cuda::CopyKind::device_to_device, stream);
        case Kind::record:
          return record(events[e], streams[s]);
        case Kind::wait:
          return wait(streams[s], events[e]);
        case Kind::stream_synchronize:
          return api().stream_synchronize(stream);
        case Kind::device_synchronize:
          return api().device_synchronize();
      }
      return cuda::kSuccess;
    };
    if (step() == cuda::kSuccess) continue;
    REQUIRE(fake::races().size() == 1);
    return {i, {}};
  }
  ok(api().device_synchronize());
  Outcome outcome;
  for (const auto& buffer : buffers) {
    const auto values = buffer.values();
    outcome.values.insert(outcome.values.end(), values.begin(), values.end());
  }
  return outcome;
}

std::set<std::vector<float>> results_of(const Program& program) {
  std::set<std::vector<float>> results;
  for (const auto strategy : {Strategy::fifo, Strategy::random, Strategy::late, Strategy::starve}) {
    for (std::uint64_t seed = 0; seed < (strategy == Strategy::random ? 20 : 3); ++seed) {
      auto config = config_of(seed, strategy);
      config.check_races = false;
      config.starved = 1 + static_cast<int>(seed);
      results.insert(run(program, config).values);
    }
  }
  return results;
}

}  // namespace

TEST_CASE("fake races: a program without one has the same result in every order") {
  int raced = 0, differed = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    INFO("program " << seed);
    Program program = random_program(seed);
    const Program before = program;
    while (const auto at = run(program, config_of(1)).raced_at) {
      ++raced;
      program.insert(program.begin() + static_cast<std::ptrdiff_t>(*at), {Kind::device_synchronize, 0, 0, 0, 0, 0});
      REQUIRE(program.size() < 3 * kSteps);
    }
    REQUIRE(results_of(program).size() == 1);
    if (program.size() != before.size() && results_of(before).size() > 1) ++differed;
  }
  CHECK(raced > 100);
  CHECK(differed > 50);  // the order is as bad as it can be
}

}  // namespace dtrun::runtime::test
