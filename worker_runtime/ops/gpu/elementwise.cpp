#include <vector>

#include "worker_runtime/ops/gpu/gpu.hpp"
#include "worker_runtime/ops/gpu/on_device.hpp"

namespace dtrun::runtime::ops::gpu {

void fill(const Tensor& x, float value) {
  by_type(x, [&](auto type) {
    using T = decltype(type);
    launch(device_of(x), kernels::Fill<T>{at<T>(x), value, x.numel()}, {writes(x)});
  });
}

void scale(const Tensor& x, float factor) {
  by_type(x, [&](auto type) {
    using T = decltype(type);
    launch(device_of(x), kernels::Scale<T>{at<T>(x), factor, x.numel()}, {writes(x)});
  });
}

void scale(const Tensor& x, const Tensor& factor) {
  by_type(x, [&](auto type) {
    using T = decltype(type);
    launch(device_of(x), kernels::ScaleBy<T>{at<T>(x), factor.device_data<float>(), x.numel()},
           {reads(factor), writes(x)});
  });
}

void add(const Tensor& a, const Tensor& b, const Tensor& out) {
  by_type(a, [&](auto type) {
    using T = decltype(type);
    launch(device_of(a), kernels::Add<T>{at<T>(a), at<T>(b), at<T>(out), a.numel()}, {reads(a), reads(b), writes(out)});
  });
}

void axpy(float factor, const Tensor& x, const Tensor& y) {
  by_type(x, [&](auto type) {
    using T = decltype(type);
    launch(device_of(x), kernels::Axpy<T>{factor, at<T>(x), at<T>(y), x.numel()}, {reads(x), writes(y)});
  });
}

double squared_norm(const Tensor& x) {
  auto& device = device_of(x);
  std::vector<double> parts(
      static_cast<std::size_t>(kernels::SquaredNorm<float>{nullptr, x.numel(), nullptr}.blocks()));
  const std::size_t bytes = parts.size() * sizeof(double);
  std::byte* const scratch = device.scratch(bytes);
  by_type(x, [&](auto type) {
    using T = decltype(type);
    launch(device, kernels::SquaredNorm<T>{at<T>(x), x.numel(), reinterpret_cast<double*>(scratch)},
           {reads(x), {scratch, bytes, true}});
  });
  device.copy_to_host(reinterpret_cast<std::byte*>(parts.data()), scratch, bytes);
  double total = 0;
  for (const double part : parts) total += part;
  return total;
}

void cast_to_bf16(const Tensor& x, const Tensor& y) {
  launch(device_of(x), kernels::Cast<float, kernels::Bf16>{at<float>(x), at<kernels::Bf16>(y), x.numel()},
         {reads(x), writes(y)});
}

void cast_to_f32(const Tensor& x, const Tensor& y) {
  launch(device_of(x), kernels::Cast<kernels::Bf16, float>{at<kernels::Bf16>(x), at<float>(y), x.numel()},
         {reads(x), writes(y)});
}

void round_to_bf16(const Tensor& x) {
  launch(device_of(x), kernels::RoundToBf16{at<float>(x), x.numel()}, {writes(x)});
}

void add_bias(const Tensor& y, const Tensor& bias) {
  by_type(y, [&](auto type) {
    using T = decltype(type);
    launch(device_of(y), kernels::AddPeriodic<T>{at<T>(y), at<T>(bias), bias.numel(), at<T>(y), y.numel()},
           {reads(bias), writes(y)});
  });
}

void bias_backward(const Tensor& dy, const Tensor& dbias) {
  const std::int64_t columns = dbias.numel();
  by_type(dy, [&](auto type) {
    using T = decltype(type);
    launch(
        device_of(dy),
        kernels::SumOfRows<T>{at<T>(dy), columns == 0 ? 0 : dy.numel() / columns, columns, columns, at<float>(dbias)},
        {reads(dy), writes(dbias)});
  });
}

}  // namespace dtrun::runtime::ops::gpu
