// model_parity DIR: trains from DIR/weights.safetensors on the batches of DIR/expected.safetensors
// (make_gpt2_golden.py, make_llama_golden.py) and compares every loss (1e-5), the first gradients (2e-5 of the largest
// of each tensor) and the parameters after all steps (1e-4). Exit code 0 when all agree, 1 otherwise; prints the
// largest differences.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <string>

#include "tests/support/local_model.hpp"
#include "worker_runtime/checkpoint/safetensors.hpp"
#include "worker_runtime/nn/gpt2.hpp"
#include "worker_runtime/nn/llama.hpp"
#include "worker_runtime/optim/adamw.hpp"
#include "worker_runtime/optim/clip.hpp"
#include "worker_runtime/optim/schedule.hpp"

using namespace dtrun::runtime;
using dtrun::runtime::testing::LocalModel;

namespace {

struct Worst {
  std::string what;
  double limit;
  double difference = 0;
  std::string where{};

  void see(double value, const std::string& at) {
    if (!(value <= difference)) {  // a nan is the worst
      difference = value;
      where = at;
    }
  }
  bool good() const { return difference <= limit; }
  void print() const {
    std::printf("%-10s %s  largest difference %.2e of %.0e  (%s)\n", what.c_str(), good() ? "ok  " : "FAIL", difference,
                limit, where.c_str());
  }
};

class Comparison {
 public:
  explicit Comparison(const std::string& directory)
      : expected_(directory + "/expected.safetensors"),
        local_(make_model()),
        adamw_(adamw(), local_.pieces(), local_.param_arena) {
    load_tensors(SafetensorsReader(directory + "/weights.safetensors"), local_.values());
  }

  bool run() {
    const Tensor tokens = read("tokens");
    const Tensor targets = read("targets");
    const Tensor losses = read("loss");
    const Tensor norms = read("norm");
    const Tensor rates = read("lr");
    const CosineSchedule schedule{number("lr"), number("min_lr"), integer("warmup_steps"), integer("total_steps")};
    for (std::int64_t step = 0; step < tokens.dim(0); ++step) {
      const Shape shape{tokens.dim(1), tokens.dim(2)};
      const float loss =
          local_.loss_and_gradients({tokens.narrow(step, 1).view(shape), targets.narrow(step, 1).view(shape)});
      if (step == 0) compare_gradients();
      SquareSum squares;
      for (const Parameter* p : local_.parameters) squares.add(p->grad().span<float>());
      const double lr = schedule.at(step);
      const std::string at = fmt::format("step {}: {} here, {} in PyTorch", step, loss, losses.data<float>()[step]);
      loss_.see(std::abs(loss - losses.data<float>()[step]), at);
      norm_.see(std::abs(squares.norm() / norms.data<float>()[step] - 1), at);
      rate_.see(std::abs(lr / rates.data<float>()[step] - 1), at);
      adamw_.step(lr, clip_coefficient(squares.norm(), number("max_norm")));
    }
    compare_parameters();
    bool good = true;
    for (const Worst* worst : {&loss_, &gradient_, &norm_, &rate_, &parameter_}) {
      worst->print();
      good = good && worst->good();
    }
    return good;
  }

 private:
  double number(const std::string& key) const { return std::stod(expected_.metadata().at(key)); }
  std::int64_t integer(const std::string& key) const { return std::stoll(expected_.metadata().at(key)); }
  Model make_model() const {
    if (!expected_.metadata().contains("hidden_size")) {
      return make_gpt2({.vocab_size = integer("vocab_size"),
                        .n_positions = integer("n_positions"),
                        .n_embd = integer("n_embd"),
                        .n_layer = integer("n_layer"),
                        .n_head = integer("n_head"),
                        .layer_norm_epsilon = static_cast<float>(number("layer_norm_epsilon"))});
    }
    return make_llama({.vocab_size = integer("vocab_size"),
                       .hidden_size = integer("hidden_size"),
                       .intermediate_size = integer("intermediate_size"),
                       .num_hidden_layers = integer("num_hidden_layers"),
                       .num_attention_heads = integer("num_attention_heads"),
                       .num_key_value_heads = integer("num_key_value_heads"),
                       .head_dim = integer("head_dim"),
                       .rope_theta = number("rope_theta"),
                       .rms_norm_eps = static_cast<float>(number("rms_norm_eps")),
                       .tie_word_embeddings = integer("tie_word_embeddings") != 0,
                       .rope_scaling = {number("factor"), number("low_frequency"), number("high_frequency"),
                                        number("original_positions")}});
  }
  AdamWConfig adamw() const { return {number("beta1"), number("beta2"), number("eps"), number("weight_decay")}; }

  Tensor read(const std::string& name) {
    const SafetensorsEntry& entry = expected_.entry(name);
    const Tensor tensor =
        Tensor::empty(entry.shape, entry.dtype == "I32" ? DType::i32 : DType::f32, local_.activation_arena);
    expected_.read(name, tensor);
    return tensor;
  }

  void compare_gradients() {
    for (const Parameter* p : local_.parameters) {
      const Tensor expected = read("grad." + p->name());
      double largest = 0, difference = 0;
      for (std::int64_t i = 0; i < p->numel(); ++i) {
        const double e = expected.data<float>()[i];
        largest = std::max(largest, std::abs(e));
        difference = std::max(difference, std::abs(p->grad().data<float>()[i] - e));
      }
      gradient_.see(difference / largest, p->name());
    }
  }

  void compare_parameters() {
    for (const Parameter* p : local_.parameters) {
      const Tensor expected = read("after." + p->name());
      for (std::int64_t i = 0; i < p->numel(); ++i) {
        parameter_.see(std::abs(static_cast<double>(p->value().data<float>()[i]) - expected.data<float>()[i]),
                       fmt::format("{}[{}]", p->name(), i));
      }
    }
  }

  SafetensorsReader expected_;
  LocalModel local_;
  AdamW adamw_;
  Worst loss_{"loss", 1e-5}, gradient_{"gradients", 2e-5}, norm_{"norm", 1e-5}, rate_{"lr", 1e-6},
      parameter_{"parameters", 1e-4};
};

}  // namespace

int main(int argc, char* argv[]) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: model_parity DIR\n");
    return 2;
  }
  try {
    return Comparison(argv[1]).run() ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "model_parity: %s\n", error.what());
    return 1;
  }
}
