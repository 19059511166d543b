#include "worker_runtime/ops/adamw.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/ops/checks.hpp"
#include "worker_runtime/ops/cpu/kernel_table.hpp"
#include "worker_runtime/ops/gpu/gpu.hpp"
#include "worker_runtime/ops/threads.hpp"

namespace dtrun::runtime::ops {

void adamw_step(const Tensor& param, const Tensor& grad, const Tensor& exp_avg, const Tensor& exp_avg_sq,
                const AdamWSettings& settings, std::int64_t step, float grad_scale) {
  expect_dtype("adamw_step", "param", param, DType::f32);
  const std::int64_t n = param.numel();
  expect_numel("adamw_step", "grad", grad, n);
  expect_numel("adamw_step", "exp_avg", exp_avg, n);
  expect_numel("adamw_step", "exp_avg_sq", exp_avg_sq, n);
  if (step < 1) throw UsageError("ops", fmt::format("adamw_step: step {}, expected 1 or more", step));
  const auto t = static_cast<double>(step);
  AdamWFactors factors;
  factors.decay = static_cast<float>(1.0 - settings.lr * settings.weight_decay);
  factors.beta1_rest = static_cast<float>(1.0 - settings.beta1);
  factors.beta2 = static_cast<float>(settings.beta2);
  factors.beta2_rest = static_cast<float>(1.0 - settings.beta2);
  factors.step_size = static_cast<float>(settings.lr / (1.0 - std::pow(settings.beta1, t)));
  factors.correction2_sqrt = static_cast<float>(std::sqrt(1.0 - std::pow(settings.beta2, t)));
  factors.eps = static_cast<float>(settings.eps);
  factors.grad_scale = grad_scale;
  if (ran_elsewhere(
          "adamw_step", [&] { gpu::adamw_step(param, grad, exp_avg, exp_avg_sq, factors); }, param, grad, exp_avg,
          exp_avg_sq))
    return;
  float* const p = param.data<float>();
  const float* const g = grad.data<float>();
  float* const m = exp_avg.data<float>();
  float* const v = exp_avg_sq.data<float>();
  constexpr std::int64_t kChunk = 32768;
  parallel_chunks((n + kChunk - 1) / kChunk, [&](std::int64_t i) {
    const std::int64_t begin = i * kChunk;
    kernels().adamw(p + begin, g + begin, m + begin, v + begin, factors, std::min(kChunk, n - begin));
  });
}

}  // namespace dtrun::runtime::ops
