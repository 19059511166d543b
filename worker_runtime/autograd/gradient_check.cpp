#include "worker_runtime/autograd/gradient_check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "worker_runtime/ops/random.hpp"

namespace dtrun::runtime {
namespace {

double weighted_sum(const Tensor& out, const Tensor& weights) {
  double sum = 0;
  for (std::int64_t i = 0; i < out.numel(); ++i) {
    sum += static_cast<double>(out.data<float>()[i]) * weights.data<float>()[i];
  }
  return sum;
}

std::vector<std::int64_t> pick_elements(std::int64_t numel, const GradientCheckOptions& options) {
  std::vector<std::int64_t> elements(static_cast<std::size_t>(std::min(numel, options.elements_per_tensor)));
  std::mt19937_64 random(options.seed);
  for (std::size_t i = 0; i < elements.size(); ++i) {
    elements[i] = numel <= options.elements_per_tensor
                      ? static_cast<std::int64_t>(i)
                      : static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(numel));
  }
  return elements;
}

}  // namespace

GradientReport check_gradients(RunContext& ctx, const Tensor& x,
                               const std::function<Value(Tape&, const Value&)>& forward,
                               std::vector<CheckedTensor> tensors, const GradientCheckOptions& options) {
  Tape tape(ctx);
  const Value out = forward(tape, tape.input(x));
  tape.finish(out);
  const Tensor weights = Tensor::empty(out.shape(), DType::f32, ctx.work);
  ops::fill_uniform(weights, -1.0F, 1.0F, ops::RandomStream::of(options.seed, "gradient_check"));
  tensors.push_back({"input", x, tape.backward(weights)});

  const auto evaluate = [&] {
    Tape inference(ctx, Tape::Mode::inference);
    return weighted_sum(forward(inference, inference.input(x)).tensor(), weights);
  };
  GradientReport report;
  for (const CheckedTensor& tensor : tensors) {
    double scale = 1e-30;
    for (const float g : tensor.grad.span<float>()) scale = std::max(scale, std::abs(static_cast<double>(g)));
    for (const std::int64_t index : pick_elements(tensor.value.numel(), options)) {
      float& element = tensor.value.data<float>()[index];
      const float before = element;
      const float above = before + static_cast<float>(options.step);
      const float below = before - static_cast<float>(options.step);
      element = above;
      double difference = evaluate();
      element = below;
      difference -= evaluate();
      element = before;
      const double expected = difference / (static_cast<double>(above) - below);
      const double gradient = tensor.grad.data<float>()[index];
      const double error = std::abs(expected - gradient) / scale;
      if (!(error <= report.worst)) {
        report = {error, fmt::format("{}[{}]: gradient {}, differences {}", tensor.name, index, gradient, expected)};
      }
    }
  }
  return report;
}

}  // namespace dtrun::runtime
