// modes_parity DIR: carries out every mode of DIR/expected.safetensors (make_modes_golden.py) with ranks as processes,
// from the same weights and batches, and compares with what PyTorch's own mode gave: every loss (1e-5), gradient norm
// (1e-5), the first gradients, gathered (2e-5 of the largest of each tensor) and the parameters after all steps (1e-4).
// What the file has of the mode only in part is also compared whole, with one process of PyTorch. Exit code 0 when all
// agree, 1 otherwise, also when the file has a mode without a row here; prints the largest differences.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <exception>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/parity/expected.hpp"
#include "tests/support/run_ranks.hpp"
#include "worker_runtime/parallel/check.hpp"
#include "worker_runtime/parallel/executor.hpp"
#include "worker_runtime/worker/parallel_choice.hpp"

using namespace dtrun::runtime;
using dtrun::runtime::parity::Expected;
using dtrun::runtime::parity::Worst;

namespace {

// A mode of torch_modes.py, and what a user of dtrun-worker asks for to have the same.
struct Row {
  std::string torch;
  int ranks;
  std::vector<std::pair<std::string, std::string>> settings;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> all{
      {"ddp 2", 2, {{"parallel", "dp=2"}}},
      {"ddp 4", 4, {{"parallel", "dp=4"}}},
      {"fsdp 2", 2, {{"parallel", "fsdp=2"}}},
      {"fsdp 4", 4, {{"parallel", "fsdp=4"}}},
      {"fsdp kept 2", 2, {{"parallel", "fsdp=2"}, {"reshard-after-forward", "false"}}},
      {"tp 2", 2, {{"parallel", "tp=2"}}},
      {"tp 4", 4, {{"parallel", "tp=4"}}},
      {"tp sp 2", 2, {{"parallel", "tp=2,sp"}}},
      {"tp sp 4", 4, {{"parallel", "tp=4,sp"}}},
      {"fsdp x tp 2x2", 4, {{"parallel", "fsdp=2,tp=2"}}},
      {"fsdp 4", 4, {{"parallel", "fsdp=4"}, {"reshard-after-forward", "2"}}},
      {"fsdp bf16 2", 2, {{"parallel", "fsdp=2"}, {"dtype", "bf16"}}},
      {"fsdp bf16 2", 2, {{"parallel", "dp=2"}, {"dtype", "bf16"}}},
      {"hsdp 2x2", 4, {{"parallel", "dp=2,fsdp=2"}}},
      {"zero 2", 2, {{"parallel", "dp=2"}, {"zero", "1"}}},
      {"zero 4", 4, {{"parallel", "dp=4"}, {"zero", "1"}}},
      {"zero 4", 4, {{"parallel", "dp=4"}, {"zero", "2"}}},
      {"gpipe 2", 2, {{"parallel", "pp=2"}, {"schedule", "gpipe"}, {"micro-batches", "4"}}},
      {"gpipe 4", 4, {{"parallel", "pp=4"}, {"schedule", "gpipe"}, {"micro-batches", "4"}}},
      {"1f1b 2", 2, {{"parallel", "pp=2"}, {"schedule", "1f1b"}, {"micro-batches", "4"}}},
      {"1f1b 4", 4, {{"parallel", "pp=4"}, {"schedule", "1f1b"}, {"micro-batches", "4"}}},
      // The order of work differs, the numbers must not.
      {"1f1b 2", 2, {{"parallel", "pp=2"}, {"schedule", "interleaved"}, {"micro-batches", "4"}}},
      {"1f1b 2", 4, {{"parallel", "pp=2,tp=2"}, {"schedule", "1f1b"}, {"micro-batches", "4"}}},
      {"gpipe 2", 4, {{"parallel", "pp=2,tp=2,sp"}, {"schedule", "gpipe"}, {"micro-batches", "4"}}},
  };
  return all;
}

// Stands where an optimizer does: the gradient that it would see becomes the value. However a mode spreads values and
// gradients, gathering the values then gives the whole gradient.
class GradientsAsValues final : public Optimizer {
 public:
  explicit GradientsAsValues(std::vector<OptimizerPiece> pieces) : Optimizer(std::move(pieces)) {}
  void step(double, float grad_scale) override {
    for (const auto& piece : pieces_) {
      for (std::int64_t i = 0; i < piece.value.numel(); ++i) {
        piece.value.data<float>()[i] = piece.grad.data<float>()[i] * grad_scale;
      }
    }
  }
  std::vector<OptimizerState> state() const override { return {}; }
};

// One rank of one mode.
class Run {
 public:
  Run(ProcessGroup& world, const Expected& expected, const Row& row)
      : world_(world), expected_(expected), row_(row), model_(expected.make_model()) {
    TrainConfig settings;
    for (const auto& [key, value] : row.settings) set_field(settings, key, {value}, "modes_parity");
    settings.seq_len = expected.tensors().entry("tokens").shape.dim(2);
    config_ = parallel_config(settings, world.size());
    cut_over_tp(model_, config_.axes, world.rank());
    mesh_ = make_mesh(world, config_.axes);
    if (config_.param_dtype == DType::bf16) {  // those of make_modes_golden.py
      loss_.limit = parameter_.limit = 1e-2;
      norm_.limit = 3e-2;
      gradient_.limit = 0.15;
    }
  }

  // Throws unless all agrees. The ranks gather together, the first one looks.
  void compare() {
    gradients();
    train();
    bool good = true;
    std::string text;
    for (const Worst* worst : {&loss_, &norm_, &gradient_, &parameter_}) {
      text += fmt::format(" {} {:.1e}", worst->what, worst->difference);
      if (!worst->good()) text += fmt::format(" FAIL above {:.0e}, {};", worst->limit, worst->where);
      good = good && worst->good();
    }
    if (world_.rank() != 0) return;
    std::string settings;
    for (const auto& [key, value] : row_.settings) settings += fmt::format(" {}={}", key, value);
    std::printf("%-14s %s %s: largest differences:%s\n", row_.torch.c_str(), good ? "ok  " : "FAIL", settings.c_str(),
                text.c_str());
    std::fflush(stdout);
    if (!good) throw std::runtime_error("the numbers are not PyTorch's");
  }

 private:
  StepExecutor executor() {
    const auto mine = batches(0);
    const auto& shape = mine.front().tokens.shape();
    auto programs = compile_all(model_, config_, {shape.dim(0), shape.dim(1)});
    require_valid(programs);
    return StepExecutor(model_, std::move(programs[static_cast<std::size_t>(world_.rank())]), mesh_, account_);
  }

  void load(StepExecutor& executor) {
    const auto values = [&] {
      std::vector<NamedTensor> result;
      for (const Parameter* p : executor.parameters()) result.push_back({p->name(), p->value()});
      return result;
    };
    executor.with_whole_parameters([&] { load_tensors(expected_.weights(), values()); }, true);
    executor.run_setup();
  }

  // Of this rank and step, one for each micro-batch: the streams of batches are the sequences in turn.
  std::vector<Batch> batches(std::int64_t step) {
    const Tensor tokens = read("tokens"), targets = read("targets");
    const auto ranks = config_.axes.data_ranks(), streams = ranks * config_.micro_batches;
    const auto sequences = tokens.dim(1) / streams, length = tokens.dim(2);
    std::vector<Batch> result;
    for (int m = 0; m < config_.micro_batches; ++m) {
      const auto first = (m * ranks + config_.axes.data_rank(world_.rank())) * sequences;
      const auto part = [&](const Tensor& all) {
        return all.narrow(step, 1).view(Shape{all.dim(1), length}).narrow(first, sequences);
      };
      result.push_back({part(tokens), part(targets)});
    }
    return result;
  }

  void gradients() {
    auto run = executor();
    load(run);
    GradientsAsValues optimizer(run.optimizer_pieces());
    const auto mine = batches(0);
    run.run_step({.step = 0, .batches = mine}, optimizer);
    see(run, "grad.", gradient_, Expected::see_gradient);
  }

  void train() {
    auto run = executor();
    load(run);
    AdamW optimizer(expected_.adamw(), run.optimizer_pieces(), arena_);
    const auto schedule = expected_.schedule();
    const Tensor losses = read(row_.torch + "/loss"), norms = read(row_.torch + "/norm");
    for (std::int64_t step = 0; step < losses.numel(); ++step) {
      const auto mine = batches(step);
      const auto result = run.run_step(
          {.step = step, .batches = mine, .lr = schedule.at(step), .max_norm = expected_.max_norm()}, optimizer);
      const double loss = losses.data<float>()[step], norm = norms.data<float>()[step];
      loss_.see(std::abs(result.loss - loss), fmt::format("step {}: {} here, {} in PyTorch", step, result.loss, loss));
      norm_.see(std::abs(result.grad_norm / norm - 1), fmt::format("step {}", step));
    }
    see(run, "after.", parameter_, Expected::see_parameter);
  }

  template <class See>
  void see(StepExecutor& run, const std::string& kind, Worst& worst, const See& difference) {
    int of_mode = 0;
    run.visit_parameters(model_.parameters(), [&](const Parameter& parameter, const Tensor& value) {
      if (world_.rank() != 0) return;
      const auto name = kind + parameter.name(), in_mode = row_.torch + "/" + name;
      difference(worst, parameter.name(), value, read(name));
      if (!expected_.tensors().contains(in_mode)) return;
      difference(worst, parameter.name(), value, read(in_mode));
      ++of_mode;
    });
    if (world_.rank() == 0 && of_mode == 0) throw std::runtime_error("the file has no " + kind + " of this mode");
  }

  Tensor read(const std::string& name) { return expected_.read(name, arena_); }

  ProcessGroup& world_;
  const Expected& expected_;
  const Row& row_;
  MemoryAccount account_;
  Arena arena_{MemoryTag::work, account_};
  Model model_;
  ParallelConfig config_;
  DeviceMesh mesh_;
  Worst loss_{"loss", 1e-5}, norm_{"norm", 1e-5}, gradient_{"gradients", 2e-5}, parameter_{"parameters", 1e-4};
};

bool carry_out(const Expected& expected, const Row& row) {
  dtrun::test::RankProcesses ranks(row.ranks, [&](ProcessGroup& world) { Run(world, expected, row).compare(); });
  bool good = true;
  for (int rank = 0; rank < row.ranks; ++rank) {
    const auto text = ranks.wait(rank);
    if (text.empty()) continue;
    std::printf("%-14s rank %d: %s\n", row.torch.c_str(), rank, text.c_str());
    good = false;
  }
  return good;
}

bool carry_out_all(const Expected& expected) {
  std::set<std::string> modes;
  for (const auto& [name, entry] : expected.tensors().entries()) {
    if (const auto slash = name.find('/'); slash != std::string::npos) modes.insert(name.substr(0, slash));
  }
  if (modes.empty()) throw std::runtime_error("the file has no modes");
  bool good = true;
  for (const auto& row : rows()) {
    if (modes.contains(row.torch)) good = carry_out(expected, row) && good;
  }
  for (const auto& row : rows()) modes.erase(row.torch);
  for (const auto& mode : modes) std::printf("%-14s has no row here\n", mode.c_str());
  return good && modes.empty();
}

}  // namespace

int main(int argc, char* argv[]) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: modes_parity DIR\n");
    return 2;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // nothing is left in the buffer for the ranks to write again
  try {
    return carry_out_all(Expected(argv[1])) ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "modes_parity: %s\n", error.what());
    return 1;
  }
}
