// What the sources of ops/gpu/ share.
#pragma once

#include <type_traits>

#include "worker_runtime/device/launch.hpp"
#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime::ops::gpu {

// The address on the device, null for an undefined tensor. Throws ShapeError unless T is the type of the elements: the
// checks of the ops take any floating-point type there.
template <class T>
T* at(const Tensor& x) {
  if (!x.defined()) return nullptr;
  if constexpr (std::is_same_v<T, kernels::Bf16>) {
    return reinterpret_cast<T*>(x.device_data<bfloat16>());
  } else {
    return x.device_data<T>();
  }
}

// Calls f(float()) or f(Bf16()) by the type of the elements.
template <class Function>
void by_type(const Tensor& x, Function f) {
  if (x.dtype() == DType::bf16) {
    f(kernels::Bf16());
  } else {
    f(float());
  }
}

inline Device& device_of(const Tensor& x) { return *runtime::device_of(*x.storage()); }

}  // namespace dtrun::runtime::ops::gpu
