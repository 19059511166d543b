// model_parity DIR: trains from DIR/weights.safetensors on the batches of DIR/expected.safetensors
// (make_gpt2_golden.py, make_llama_golden.py) and compares every loss (1e-5), the first gradients (2e-5 of the largest
// of each tensor) and the parameters after all steps (1e-4). Exit code 0 when all agree, 1 otherwise; prints the
// largest differences.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <string>

#include "tests/parity/expected.hpp"
#include "tests/support/local_model.hpp"
#include "worker_runtime/optim/clip.hpp"

using namespace dtrun::runtime;
using dtrun::runtime::parity::Expected;
using dtrun::runtime::parity::Worst;
using dtrun::runtime::testing::LocalModel;

namespace {

bool compare(const Expected& expected) {
  LocalModel local(expected.make_model());
  AdamW adamw(expected.adamw(), local.pieces(), local.param_arena);
  load_tensors(expected.weights(), local.values());
  const auto read = [&](const std::string& name) { return expected.read(name, local.activation_arena); };
  const Tensor tokens = read("tokens"), targets = read("targets");
  const Tensor losses = read("loss"), norms = read("norm"), rates = read("lr");
  const CosineSchedule schedule = expected.schedule();
  Worst loss{"loss", 1e-5}, gradient{"gradients", 2e-5}, norm{"norm", 1e-5}, rate{"lr", 1e-6},
      parameter{"parameters", 1e-4};
  for (std::int64_t step = 0; step < tokens.dim(0); ++step) {
    const Shape shape{tokens.dim(1), tokens.dim(2)};
    const float found =
        local.loss_and_gradients({tokens.narrow(step, 1).view(shape), targets.narrow(step, 1).view(shape)});
    SquareSum squares;
    for (const Parameter* p : local.parameters) {
      squares.add(p->grad().span<float>());
      if (step == 0) Expected::see_gradient(gradient, p->name(), p->grad(), read("grad." + p->name()));
    }
    const double lr = schedule.at(step);
    const std::string at = fmt::format("step {}: {} here, {} in PyTorch", step, found, losses.data<float>()[step]);
    loss.see(std::abs(found - losses.data<float>()[step]), at);
    norm.see(std::abs(squares.norm() / norms.data<float>()[step] - 1), at);
    rate.see(std::abs(lr / rates.data<float>()[step] - 1), at);
    adamw.step(lr, clip_coefficient(squares.norm(), expected.max_norm()));
  }
  for (const Parameter* p : local.parameters) {
    Expected::see_parameter(parameter, p->name(), p->value(), read("after." + p->name()));
  }
  bool good = true;
  for (const Worst* worst : {&loss, &gradient, &norm, &rate, &parameter}) {
    worst->print();
    good = good && worst->good();
  }
  return good;
}

}  // namespace

int main(int argc, char* argv[]) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: model_parity DIR\n");
    return 2;
  }
  try {
    return compare(Expected(argv[1])) ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "model_parity: %s\n", error.what());
    return 1;
  }
}
