#include "worker_runtime/ops/gpu/gpu.hpp"
#include "worker_runtime/ops/gpu/on_device.hpp"

namespace dtrun::runtime::ops::gpu {

void gelu_forward(const Tensor& x, const Tensor& y) {
  by_type(x, [&](auto type) {
    using T = decltype(type);
    launch(device_of(x), kernels::GeluForward<T>{at<T>(x), at<T>(y), x.numel()}, {reads(x), writes(y)});
  });
}

void gelu_backward(const Tensor& x, const Tensor& dy, const Tensor& dx) {
  by_type(x, [&](auto type) {
    using T = decltype(type);
    launch(device_of(x), kernels::GeluBackward<T>{at<T>(x), at<T>(dy), at<T>(dx), x.numel()},
           {reads(x), reads(dy), writes(dx)});
  });
}

void swiglu_forward(const Tensor& gate, const Tensor& up, const Tensor& y) {
  by_type(gate, [&](auto type) {
    using T = decltype(type);
    launch(device_of(gate), kernels::SwigluForward<T>{at<T>(gate), at<T>(up), at<T>(y), gate.numel()},
           {reads(gate), reads(up), writes(y)});
  });
}

void swiglu_backward(const Tensor& gate, const Tensor& up, const Tensor& dy, const Tensor& dgate, const Tensor& dup) {
  by_type(gate, [&](auto type) {
    using T = decltype(type);
    launch(device_of(gate),
           kernels::SwigluBackward<T>{at<T>(gate), at<T>(up), at<T>(dy), at<T>(dgate), at<T>(dup), gate.numel()},
           {reads(gate), reads(up), reads(dy), writes(dgate), writes(dup)});
  });
}

void rope(const Tensor& x, const Tensor& table, float direction, const Tensor& y) {
  const std::int64_t half = table.dim(1) / 2;
  by_type(x, [&](auto type) {
    using T = decltype(type);
    launch(device_of(x),
           kernels::Rope<T>{at<T>(x), table.device_data<float>(), direction, x.dim(1), x.dim(2) / (2 * half), half,
                            at<T>(y), x.numel() / 2},
           {reads(x), reads(table), writes(y)});
  });
}

}  // namespace dtrun::runtime::ops::gpu
