// bench_step [--steps N] [--warmup N] [--threads N] [--layers N] [--hidden N] [--heads N] [--vocab N] [--seq-len N]
// [--batch-size N]
//            [--clip-norm X] [--profile]
// Milliseconds per training step (forward, backward, norm, AdamW) of a GPT-2 in f32, the C++ side of
// scripts/bench/step/step_torch.py. Prints one JSON line; --profile adds the time of each phase.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/support/local_model.hpp"
#include "worker_runtime/nn/gpt2.hpp"
#include "worker_runtime/ops/cpu_level.hpp"
#include "worker_runtime/ops/threads.hpp"
#include "worker_runtime/optim/adamw.hpp"
#include "worker_runtime/optim/clip.hpp"

using namespace dtrun::runtime;

namespace {

double seconds(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Settings {
  std::map<std::string, double> values = {{"steps", 20},     {"warmup", 3},    {"threads", 1},  {"layers", 4},
                                          {"hidden", 256},   {"heads", 4},     {"vocab", 4096}, {"seq-len", 128},
                                          {"batch-size", 8}, {"clip-norm", 0}, {"profile", 0}};
  std::int64_t operator[](const std::string& key) const { return static_cast<std::int64_t>(values.at(key)); }
};

Settings parse(int argc, char* argv[]) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string key = std::string(argv[i]).starts_with("--") ? argv[i] + 2 : "";
    if (key == "profile") {
      settings.values[key] = 1;
      continue;
    }
    char* end = nullptr;
    const double value = settings.values.contains(key) && i + 1 < argc ? std::strtod(argv[i + 1], &end) : -1;
    if (end == nullptr || *end != '\0' || value < 0) {
      std::fprintf(stderr, "bench_step: \"%s\" is not an option with a number, see the head of bench_step.cpp\n",
                   argv[i]);
      std::exit(2);
    }
    settings.values[key] = value;
    ++i;
  }
  return settings;
}

class Bench {
 public:
  explicit Bench(const Settings& settings)
      : settings_(settings),
        local_(make_gpt2({.vocab_size = settings["vocab"],
                          .n_positions = settings["seq-len"],
                          .n_embd = settings["hidden"],
                          .n_layer = settings["layers"],
                          .n_head = settings["heads"]})),
        adamw_({.weight_decay = 0.1}, local_.pieces(), optimizer_arena_) {
    const std::int64_t rows = settings["batch-size"], columns = settings["seq-len"];
    std::mt19937 random(0);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(rows * columns));
    for (auto& id : ids) id = static_cast<std::int32_t>(random() % static_cast<unsigned>(settings["vocab"]));
    batch_.tokens = local_.ids(rows, columns, ids);
    std::ranges::rotate(ids, ids.begin() + 1);
    batch_.targets = local_.ids(rows, columns, ids);
  }

  float step() {
    double at = seconds(CLOCK_MONOTONIC);
    const auto lap = [&](std::size_t phase) {
      const double now = seconds(CLOCK_MONOTONIC);
      phases_[phase] += now - at;
      at = now;
    };
    for (Parameter* parameter : local_.parameters) parameter->clear_grad();
    std::vector<Tape> tapes;
    Tensor x;
    for (std::size_t i = 0; i < local_.model.size(); ++i) {
      tapes.emplace_back(local_.context);
      x = local_.model.unit(i).run(tapes.back(), x, batch_);
      lap(i == 0 ? 0 : i + 1 == local_.model.size() ? 2 : 1);
    }
    const float loss = *x.data<float>();
    flops_ = 0;
    Tensor grad;
    for (std::size_t i = tapes.size(); i-- > 0;) {
      flops_ += 3 * tapes[i].flops();
      Tape tape = std::move(tapes[i]);
      grad = tape.backward(grad);
      lap(i == 0 ? 5 : i + 1 == local_.model.size() ? 3 : 4);
    }
    float coefficient = 1;
    if (const double limit = settings_.values.at("clip-norm"); limit > 0) {  // step_torch.py does not clip
      SquareSum squares;
      for (const Parameter* p : local_.parameters) squares.add(p->grad().span<float>());
      coefficient = clip_coefficient(squares.norm(), limit);
    }
    lap(6);
    adamw_.step(3e-4, coefficient);
    lap(7);
    return loss;
  }

  void run() {
    std::vector<double> times;
    double cpu = 0;
    float loss = 0;
    for (std::int64_t i = 0; i < settings_["warmup"] + settings_["steps"]; ++i) {
      if (i == settings_["warmup"]) phases_.assign(kPhases.size(), 0);
      const double start = seconds(CLOCK_MONOTONIC), start_cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
      loss = step();
      if (i < settings_["warmup"]) continue;
      times.push_back(1e3 * (seconds(CLOCK_MONOTONIC) - start));
      cpu += 1e3 * (seconds(CLOCK_PROCESS_CPUTIME_ID) - start_cpu);
    }
    std::ranges::sort(times);
    fmt::print(
        "{{\"what\": \"dtrun step\", \"cpu\": \"{}\", \"threads\": {}, \"best_ms\": {:.2f}, \"median_ms\": {:.2f}, "
        "\"cpu_ms\": {:.2f}, "
        "\"gflops\": {:.1f}, \"loss\": {:.4f}}}\n",
        ops::name_of(ops::cpu_level()), ops::num_threads(), times.front(), times[times.size() / 2],
        cpu / static_cast<double>(times.size()), flops_ / times.front() * 1e-6, loss);
    if (settings_["profile"] == 0) return;
    for (std::size_t i = 0; i < kPhases.size(); ++i)
      fmt::print("{:20} {:8.2f} ms\n", kPhases[i], 1e3 * phases_[i] / static_cast<double>(times.size()));
    for (const MemoryTag tag :
         {MemoryTag::param, MemoryTag::grad, MemoryTag::optimizer, MemoryTag::activation, MemoryTag::work}) {
      fmt::print("peak {:15} {:8.1f} MiB\n", name_of(tag), static_cast<double>(local_.account.peak(tag)) / 1048576);
    }
  }

 private:
  const std::vector<std::string> kPhases = {"forward embedding", "forward blocks",     "forward head", "backward head",
                                            "backward blocks",   "backward embedding", "norm",         "AdamW"};
  Settings settings_;
  testing::LocalModel local_;
  Arena optimizer_arena_{MemoryTag::optimizer, local_.account};
  AdamW adamw_;
  Batch batch_;
  std::vector<double> phases_ = std::vector<double>(8, 0);
  double flops_ = 0;
};

}  // namespace

int main(int argc, char* argv[]) {
  try {
    const Settings settings = parse(argc, argv);
    ops::set_num_threads(static_cast<int>(settings["threads"]));
    Bench(settings).run();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_step: %s\n", error.what());
    return 1;
  }
}
