// bench_ops [threads] [level]: where the time of a GPT training step goes. Runs the ops of one step (runtime.md section
// 10: 4 layers, d 256, T 128, B 8, V 4096, f32) in order, with fixed buffers, and prints per op the time within the
// best step, and its GFLOP/s or GB/s.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "worker_runtime/ops/adamw.hpp"
#include "worker_runtime/ops/attention.hpp"
#include "worker_runtime/ops/cpu_level.hpp"
#include "worker_runtime/ops/cross_entropy.hpp"
#include "worker_runtime/ops/elementwise.hpp"
#include "worker_runtime/ops/embedding.hpp"
#include "worker_runtime/ops/gelu.hpp"
#include "worker_runtime/ops/linear.hpp"
#include "worker_runtime/ops/norm.hpp"
#include "worker_runtime/ops/random.hpp"
#include "worker_runtime/ops/threads.hpp"
#include "worker_runtime/ops/workspace.hpp"

namespace {

using namespace dtrun::runtime;

// CPU seconds of all threads of this process: what the ops cost, whoever else uses the machine.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

constexpr std::int64_t kLayers = 4, kD = 256, kT = 128, kB = 8, kV = 4096, kHeads = 4, kN = kB * kT;

struct Line {
  double seconds = 0;
  double flops = 0;
  double bytes = 0;
};
std::map<std::string, Line> lines;

void timed(const char* name, double flops, double bytes, const std::function<void()>& run) {
  const double start = cpu_seconds();
  run();
  Line& line = lines[name];
  line.seconds += cpu_seconds() - start;
  line.flops += flops;
  line.bytes += bytes;
}

MemoryAccount account;
Arena arena(MemoryTag::work, account);
Tensor make(const Shape& shape) {
  static std::uint64_t stream = 0;
  Tensor x = Tensor::empty(shape, DType::f32, arena);
  ops::fill_normal(x, 0.02F, {1, ++stream});
  return x;
}

struct Param {
  explicit Param(const Shape& shape)
      : value(make(shape)),
        grad(make(shape)),
        m(Tensor::zeros(shape, DType::f32, arena)),
        v(Tensor::zeros(shape, DType::f32, arena)) {}
  Tensor value, grad, m, v;
};

struct LinearLayer {
  LinearLayer(std::int64_t in, std::int64_t out, std::vector<Param*>& all) : w(Shape{in, out}), b(Shape{out}) {
    all.push_back(&w);
    all.push_back(&b);
  }
  static constexpr auto kLayout = ops::WeightLayout::in_out;
  double flops() const { return 2.0 * static_cast<double>(kN) * static_cast<double>(w.value.numel()); }
  void forward(const Tensor& x, const Tensor& y) {
    timed("linear forward", flops(), 0, [&] { ops::linear_forward(x, w.value, b.value, kLayout, y); });
  }
  void backward(const Tensor& x, const Tensor& dy, const Tensor& dx) {
    timed("linear backward input", flops(), 0, [&] { ops::linear_backward_input(dy, w.value, kLayout, dx); });
    timed("linear backward weight", flops(), 0, [&] { ops::linear_backward_weight(x, dy, kLayout, w.grad, b.grad); });
  }
  Param w, b;
};

struct Norm {
  explicit Norm(std::vector<Param*>& all) : gamma(Shape{kD}), beta(Shape{kD}), mean(make({kN})), rstd(make({kN})) {
    all.push_back(&gamma);
    all.push_back(&beta);
  }
  static constexpr double kBytes = 4.0 * kN * kD;
  void forward(const Tensor& x, const Tensor& y) {
    timed("layernorm forward", 0, 2 * kBytes,
          [&] { ops::layernorm_forward(x, gamma.value, beta.value, 1e-5F, y, mean, rstd); });
  }
  void backward(const Tensor& dy, const Tensor& x, const Tensor& dx) {
    timed("layernorm backward", 0, 6 * kBytes, [&] {
      ops::layernorm_backward_weight(dy, x, mean, rstd, gamma.grad, beta.grad);
      ops::layernorm_backward_input(dy, x, gamma.value, mean, rstd, dx, ops::Into::add);
    });
  }
  Param gamma, beta;
  Tensor mean, rstd;
};

struct BlockLayer {
  explicit BlockLayer(std::vector<Param*>& all)
      : ln_1(all), ln_2(all), attn(kD, 3 * kD, all), proj(kD, kD, all), fc(kD, 4 * kD, all), out(4 * kD, kD, all) {}
  Norm ln_1, ln_2;
  LinearLayer attn, proj, fc, out;
  Tensor n1 = make({kB, kT, kD}), qkv = make({kB, kT, 3 * kD}), heads = make({kB, kT, kD}),
         lse = make({kB, kHeads, kT});
  Tensor mid = make({kB, kT, kD}), n2 = make({kB, kT, kD}), pre = make({kB, kT, 4 * kD}), act = make({kB, kT, 4 * kD}),
         y = make({kB, kT, kD});
};

struct Step {
  std::vector<Param*> params;
  Param wte{Shape{kV, kD}}, wpe{Shape{kT, kD}};
  std::vector<BlockLayer> blocks;
  Norm ln_f{params};
  Tensor ids = Tensor::empty({kB, kT}, DType::i32, arena), targets = Tensor::empty({kB, kT}, DType::i32, arena);
  Tensor x0 = make({kB, kT, kD}), last = make({kB, kT, kD}), logits = make({kB, kT, kV});
  Tensor dx = make({kB, kT, kD}), dtmp = make({kB, kT, kD}), dact = make({kB, kT, 4 * kD}),
         dqkv = make({kB, kT, 3 * kD});
  std::int64_t count = 0;

  Step() {
    params.push_back(&wte);
    params.push_back(&wpe);
    blocks.reserve(kLayers);
    for (int i = 0; i < kLayers; ++i) blocks.emplace_back(params);
    for (int i = 0; i < kN; ++i) {
      ids.data<std::int32_t>()[i] = static_cast<std::int32_t>(i * 2654435761U % kV);
      targets.data<std::int32_t>()[i] = static_cast<std::int32_t>((i + 1) * 2654435761U % kV);
    }
  }

  void forward_block(BlockLayer& b, const Tensor& x) {
    b.ln_1.forward(x, b.n1);
    b.attn.forward(b.n1, b.qkv);
    timed("attention forward", 2.0 * kB * kT * kT * kD, 0,
          [&] { ops::attention_forward(b.qkv, kHeads, b.heads, b.lse); });
    b.proj.forward(b.heads, b.mid);
    timed("residual add", 0, 3 * Norm::kBytes, [&] { ops::add(x, b.mid, b.mid); });
    b.ln_2.forward(b.mid, b.n2);
    timed("linear gelu forward", b.fc.flops(), 0,
          [&] { ops::linear_gelu_forward(b.n2, b.fc.w.value, b.fc.b.value, LinearLayer::kLayout, b.pre, b.act); });
    b.out.forward(b.act, b.y);
    timed("residual add", 0, 3 * Norm::kBytes, [&] { ops::add(b.mid, b.y, b.y); });
  }

  void backward_block(BlockLayer& b, const Tensor& x) {
    b.out.backward(b.act, dx, dact);
    timed("gelu backward", 0, 12.0 * Norm::kBytes, [&] { ops::gelu_backward(b.pre, dact, dact); });
    b.fc.backward(b.n2, dact, dtmp);
    b.ln_2.backward(dtmp, b.mid, dx);
    b.proj.backward(b.heads, dx, dtmp);
    timed("attention backward", 5.0 * kB * kT * kT * kD, 0,
          [&] { ops::attention_backward(b.qkv, b.heads, b.lse, dtmp, kHeads, dqkv); });
    b.attn.backward(b.n1, dqkv, dtmp);
    b.ln_1.backward(dtmp, x, dx);
  }

  double run() {
    const double head_flops = 2.0 * kN * kD * kV;
    const auto out_in = ops::WeightLayout::out_in;
    timed("embedding forward", 0, 3 * Norm::kBytes, [&] { ops::embedding_forward(ids, wte.value, wpe.value, x0); });
    for (int i = 0; i < kLayers; ++i) forward_block(blocks[i], i == 0 ? x0 : blocks[i - 1].y);
    ln_f.forward(blocks.back().y, last);
    timed("head forward", head_flops, 0, [&] { ops::linear_forward(last, wte.value, Tensor(), out_in, logits); });
    double loss = 0;
    timed("cross-entropy", 0, 8.0 * kN * kV,
          [&] { loss = ops::cross_entropy_forward_backward(logits, targets).mean(); });
    timed("head backward input", head_flops, 0, [&] { ops::linear_backward_input(logits, wte.value, out_in, dtmp); });
    timed("head backward weight", head_flops, 0,
          [&] { ops::linear_backward_weight(last, logits, out_in, wte.grad, Tensor()); });
    dx.zero();
    ln_f.backward(dtmp, blocks.back().y, dx);
    for (int i = kLayers - 1; i >= 0; --i) backward_block(blocks[i], i == 0 ? x0 : blocks[i - 1].y);
    timed("embedding backward", 0, 2 * Norm::kBytes, [&] {
      ops::embedding_backward_tokens(ids, dx, wte.grad, ops::Into::add);
      ops::embedding_backward_positions(dx, wpe.grad);
    });
    ++count;
    for (Param* p : params) {
      timed("adamw", 0, 28.0 * static_cast<double>(p->value.numel()),
            [&] { ops::adamw_step(p->value, p->grad, p->m, p->v, {}, count); });
    }
    return loss;
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) ops::set_num_threads(std::atoi(argv[1]));
  for (const auto level : {ops::CpuLevel::v2, ops::CpuLevel::v3, ops::CpuLevel::v4, ops::CpuLevel::plain}) {
    if (argc > 2 && ops::name_of(level) == argv[2]) ops::set_cpu_level(level);
  }
  Step step;
  std::vector<double> times;
  std::map<std::string, Line> best;
  double loss = 0;
  for (int i = 0; i < 23; ++i) {
    lines.clear();
    const double start = cpu_seconds();
    loss = step.run();
    const double seconds = cpu_seconds() - start;
    if (i < 3) continue;
    if (times.empty() || seconds < *std::min_element(times.begin(), times.end())) best = lines;
    times.push_back(seconds);
  }
  std::sort(times.begin(), times.end());
  std::printf("level %s, threads %d, loss %.4f, workspace %.1f MiB\n",
              std::string(ops::name_of(ops::cpu_level())).c_str(), ops::num_threads(), loss,
              static_cast<double>(ops::workspace_bytes()) / 1048576.0);
  double flops = 0;
  for (const auto& [name, line] : best) {
    flops += line.flops;
    std::printf("  %-24s %8.3f ms", name.c_str(), line.seconds * 1e3);
    if (line.flops > 0) std::printf("  %7.1f GFLOP/s", line.flops / line.seconds * 1e-9);
    if (line.bytes > 0) std::printf("  %7.1f GB/s", line.bytes / line.seconds * 1e-9);
    std::printf("\n");
  }
  std::printf("step (CPU time): best %.2f ms, median %.2f ms, %.1f GFLOP/s\n", times.front() * 1e3,
              times[times.size() / 2] * 1e3, flops / times.front() * 1e-9);
}
