// The order of streams: no seed of the fake's adversarial scheduler finds a race in a step, and every wait that is
// taken away is found.
#include <map>
#include <mutex>

#include "tests/catch.hpp"
#include "tests/integration/worker_runtime/gpu/fake_ranks.hpp"
#include "worker_runtime/worker/trainer.hpp"

using namespace dtrun::runtime;

namespace {

TrainConfig smallest(const std::string& parallel, std::int64_t micro_batches = 1) {
  TrainConfig config;
  config.layers = 2;
  config.hidden = 8;
  config.heads = 2;
  config.vocab_size = 257;
  config.seq_len = 4;
  config.batch_size = 1;
  config.steps = 2;
  config.parallel = parallel;
  config.micro_batches = micro_batches;
  return config;
}

dtrun::test::FakeRun train(const TrainConfig& config, int ranks, dtrun::test::FakeRanksOptions options,
                           std::uint64_t* hash = nullptr) {
  return dtrun::test::run_fake_ranks(
      ranks,
      [&](ProcessGroup& group, Device& device) {
        Trainer trainer(group, *group.account(), config, {}, &device);
        trainer.run([] { return false; }, [](const StepRecord&) {});
        const auto found = trainer.parameter_hash();
        if (hash != nullptr && group.rank() == 0) *hash = found;
      },
      options);
}

// FakeCuda's table, but no stream whose name holds `waiting` waits for an event of one whose name holds `waited_for`.
class DroppedWaits {
 public:
  DroppedWaits(std::string waiting, std::string waited_for) {
    const std::lock_guard lock(mutex());
    state() = {std::move(waiting), std::move(waited_for), {}, {}, 0};
    api_ = fake::cuda_api();
    api_.name_stream = [](cuda::StreamHandle stream, const char* name) {
      const std::lock_guard guard(mutex());
      state().streams[stream] = name;
    };
    api_.event_record = [](cuda::EventHandle event, cuda::StreamHandle stream) {
      {
        const std::lock_guard guard(mutex());
        state().recorded_on[event] = state().streams[stream];
      }
      return fake::cuda_api().event_record(event, stream);
    };
    api_.stream_wait_event = [](cuda::StreamHandle stream, cuda::EventHandle event) {
      {
        const std::lock_guard guard(mutex());
        const auto holds = [](const std::string& name, const std::string& part) {
          return name.find(part) != std::string::npos;
        };
        if (holds(state().streams[stream], state().waiting) && holds(state().recorded_on[event], state().waited_for)) {
          ++state().dropped;
          return cuda::kSuccess;
        }
      }
      return fake::cuda_api().stream_wait_event(stream, event);
    };
  }
  const cuda::CudaApi& api() const { return api_; }
  static int dropped() { return state().dropped; }

 private:
  struct State {
    std::string waiting, waited_for;
    std::map<cuda::StreamHandle, std::string> streams;
    std::map<cuda::EventHandle, std::string> recorded_on;
    int dropped = 0;
  };
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static State& state() {
    static State one;
    return one;
  }
  cuda::CudaApi api_{};
};

}  // namespace

TEST_CASE("a thousand orders of the streams have no race and one result") {
  const auto& [parallel, micro_batches] =
      GENERATE(table<std::string, int>({{"dp=2", 2}, {"fsdp=2", 1}, {"pp=2", 2}, {"tp=2,sp", 1}}));
  const auto config = smallest(parallel, micro_batches);
  std::uint64_t expected = 0;
  for (std::uint64_t seed = 1; seed <= 250; ++seed) {
    dtrun::test::FakeRanksOptions options;
    options.cuda.seed = seed;
    options.cuda.strategy = seed % 5 == 0   ? fake::Strategy::late
                            : seed % 5 == 1 ? fake::Strategy::starve
                                            : fake::Strategy::random;
    options.cuda.starved = static_cast<int>(1 + seed % 9);
    std::uint64_t hash = 0;
    const auto run = train(config, 2, options, &hash);
    if (expected == 0) expected = hash;
    if (run.good() && hash == expected) continue;
    CAPTURE(parallel, seed);
    FAIL(run.to_string());
  }
}

TEST_CASE("every wait that is taken away is found") {
  struct Planted {
    const char* what;
    const char* waiting;
    const char* waited_for;
    const char* parallel;
    int micro_batches;
  };
  const std::vector<Planted> all{
      {"before the use of gathered parameters", "compute", "gather", "fsdp=2", 1},
      {"before a gather into memory that was in use", "gather", "compute", "fsdp=2", 1},
      {"before the sum of gradients", "reduce", "compute", "dp=2", 1},
      {"before the optimizer", "compute", "reduce", "dp=2", 1},
      {"before forward of what was received", "compute", " to ", "pp=2", 2},
      {"before sending what was computed", " to ", "compute", "pp=2", 2},
      {"before the sum of what each rank of tp has", "reduce", "compute", "tp=2", 1},
  };
  for (const auto& planted : all) {
    CAPTURE(planted.what);
    const DroppedWaits waits(planted.waiting, planted.waited_for);
    dtrun::test::FakeRanksOptions options;
    options.api = &waits.api();
    options.timeout = std::chrono::seconds(2);
    const auto run = train(smallest(planted.parallel, planted.micro_batches), 2, options);
    CHECK(DroppedWaits::dropped() > 0);
    CHECK_FALSE(run.races.empty());
  }
}
