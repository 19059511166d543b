#include "worker_runtime/ops/gpu/gpu.hpp"
#include "worker_runtime/ops/gpu/on_device.hpp"

namespace dtrun::runtime::ops::gpu {

void layernorm_forward(const Tensor& x, const Tensor& gamma, const Tensor& beta, float eps, const Tensor& y,
                       const Tensor& mean, const Tensor& rstd) {
  by_type(x, [&](auto type) {
    using T = decltype(type);
    launch(device_of(x),
           kernels::LayernormForward<T>{at<T>(x), at<T>(gamma), at<T>(beta), eps, mean.numel(), gamma.numel(), at<T>(y),
                                        mean.device_data<float>(), rstd.device_data<float>()},
           {reads(x), reads(gamma), reads(beta), writes(y), writes(mean), writes(rstd)});
  });
}

void layernorm_backward_input(const Tensor& dy, const Tensor& x, const Tensor& gamma, const Tensor& mean,
                              const Tensor& rstd, const Tensor& dx, Into into) {
  by_type(x, [&](auto type) {
    using T = decltype(type);
    launch(device_of(x),
           kernels::LayernormBackwardInput<T>{at<T>(dy), at<T>(x), at<T>(gamma), mean.device_data<float>(),
                                              rstd.device_data<float>(), mean.numel(), gamma.numel(), at<T>(dx),
                                              into == Into::add},
           {reads(dy), reads(x), reads(gamma), reads(mean), reads(rstd), writes(dx)});
  });
}

void layernorm_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                               const Tensor& dgamma, const Tensor& dbeta) {
  const std::int64_t d = dgamma.numel();
  by_type(x, [&](auto type) {
    using T = decltype(type);
    launch(
        device_of(x),
        kernels::LayernormBackwardWeight<T>{at<T>(dy), at<T>(x), mean.device_data<float>(), rstd.device_data<float>(),
                                            mean.numel(), d, d, at<float>(dgamma), at<float>(dbeta)},
        {reads(dy), reads(x), reads(mean), reads(rstd), writes(dgamma), writes(dbeta)});
  });
}

void rmsnorm_forward(const Tensor& x, const Tensor& gamma, float eps, const Tensor& y, const Tensor& rstd) {
  by_type(x, [&](auto type) {
    using T = decltype(type);
    launch(device_of(x),
           kernels::RmsnormForward<T>{at<T>(x), at<T>(gamma), eps, rstd.numel(), gamma.numel(), at<T>(y),
                                      rstd.device_data<float>()},
           {reads(x), reads(gamma), writes(y), writes(rstd)});
  });
}

void rmsnorm_backward_input(const Tensor& dy, const Tensor& x, const Tensor& gamma, const Tensor& rstd,
                            const Tensor& dx, Into into) {
  by_type(x, [&](auto type) {
    using T = decltype(type);
    launch(device_of(x),
           kernels::RmsnormBackwardInput<T>{at<T>(dy), at<T>(x), at<T>(gamma), rstd.device_data<float>(), rstd.numel(),
                                            gamma.numel(), at<T>(dx), into == Into::add},
           {reads(dy), reads(x), reads(gamma), reads(rstd), writes(dx)});
  });
}

void rmsnorm_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& rstd, const Tensor& dgamma) {
  const std::int64_t d = dgamma.numel();
  by_type(x, [&](auto type) {
    using T = decltype(type);
    launch(device_of(x),
           kernels::RmsnormBackwardWeight<T>{at<T>(dy), at<T>(x), rstd.device_data<float>(), rstd.numel(), d, d,
                                             at<float>(dgamma)},
           {reads(dy), reads(x), reads(rstd), writes(dgamma)});
  });
}

}  // namespace dtrun::runtime::ops::gpu
