// A model of one's own: PaLM's blocks, where attention and MLP run side by side and one head of keys serves all.
#include "worker_runtime/nn/attention.hpp"
#include "worker_runtime/nn/functional.hpp"
#include "worker_runtime/nn/linear.hpp"
#include "worker_runtime/nn/rmsnorm.hpp"
#include "worker_runtime/worker/worker_main.hpp"

using namespace dtrun::runtime;

class Start final : public Unit {  // the first unit makes the activation of the tokens
 public:
  Start(std::int64_t vocabulary, std::int64_t width)
      : Unit("start"), table_(Scope(*this).parameter("tokens.weight", {vocabulary, width}, Init::normal(0.02F))) {}
  Value forward(Tape& tape, const Value&, const Batch& batch) const override {
    return embed(tape, batch.tokens, table_);
  }
  Shape output_shape(std::int64_t b, std::int64_t t) const override { return {b, t, table_.shape().dim(1)}; }
  Parameter& table() const { return table_; }

 private:
  Parameter& table_;
};

class PalmBlock final : public Unit {  // takes an activation, gives the next one
 public:
  PalmBlock(const std::string& name, std::int64_t width, std::int64_t heads)
      : Unit(name), width_(width), heads_(heads), rope_(std::make_shared<RotaryTable>(10000, width / heads)) {}
  Value forward(Tape& tape, const Value& x, const Batch&) const override {
    const Value h = norm_(tape, x);
    const Value q = rotary(tape, q_(tape, h), rope_), k = rotary(tape, k_(tape, h), rope_);
    const Value mixed = out_(tape, grouped_attention(tape, q, k, v_(tape, h), heads_, 1));
    return add(tape, x, add(tape, mixed, down_(tape, up_.with_gelu(tape, h))));
  }
  Shape output_shape(std::int64_t b, std::int64_t t) const override { return {b, t, width_}; }

 private:
  std::int64_t width_, heads_;
  std::shared_ptr<RotaryTable> rope_;
  Scope scope_{*this, name()};  // prefixes the names of parameters
  RMSNorm norm_{scope_ / "norm", width_, 1e-6F};
  Linear q_{scope_ / "q", width_, width_, {.heads = heads_}}, k_{scope_ / "k", width_, width_ / heads_};
  Linear v_{scope_ / "v", width_, width_ / heads_}, out_{scope_ / "out", width_, width_};
  Linear up_{scope_ / "up", width_, 4 * width_}, down_{scope_ / "down", 4 * width_, width_};
};

class End final : public Unit {  // the last unit gives the mean loss
 public:
  explicit End(Parameter& table) : Unit("end"), table_(Scope(*this).share(table)) {}
  Value forward(Tape& tape, const Value& x, const Batch& batch) const override {
    return cross_entropy(tape, tied_linear(tape, norm_(tape, x), table_), batch.targets);
  }
  Shape output_shape(std::int64_t, std::int64_t) const override { return {1}; }

 private:
  Parameter& table_;
  RMSNorm norm_{Scope(*this, "norm"), table_.shape().dim(1), 1e-6F};
};

int main(int argc, char** argv) {
  return worker_main(argc, argv, [](const TrainConfig& run, std::int64_t vocabulary) {
    Model model;
    const auto& start = model.add<Start>(vocabulary, run.hidden);
    for (int i = 0; i < run.layers; ++i) model.add<PalmBlock>("blocks." + std::to_string(i), run.hidden, run.heads);
    model.add<End>(start.table());
    model.tensor_plan = {
        {"*.q", "column"}, {"*.up", "column"}, {"*.out", "row"}, {"*.down", "row"}, {"tokens", "vocab"}};
    return model;
  });
}
