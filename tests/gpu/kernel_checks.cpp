#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>

#include "tests/gpu/checks.hpp"
#include "tests/gpu/report.hpp"
#include "tests/unit/worker_runtime/kernels/op_cases.hpp"
#include "worker_runtime/kernels/list.hpp"
#include "worker_runtime/ops/elementwise.hpp"
#include "worker_runtime/ops/random.hpp"
#include "worker_runtime/optim/clip.hpp"

namespace dtrun::runtime::gpu_check {
namespace {

constexpr auto kKernels = static_cast<std::size_t>(kernels::KernelId::count);
std::array<std::atomic<int>, kKernels> launched;
const cuda::KernelApi* counted = nullptr;

Tensor host_tensor(const Shape& shape, DType dtype) {
  static MemoryAccount account;
  static Arena arena(MemoryTag::work, account);
  return Tensor::empty(shape, dtype, arena);
}

Tensor narrowed(const Tensor& x) {
  const Tensor y = host_tensor(x.shape(), DType::bf16);
  ops::cast_to_bf16(x, y);
  return y;
}

Tensor widened(const Tensor& x) {
  const Tensor y = host_tensor(x.shape(), DType::f32);
  ops::cast_to_f32(x, y);
  return y;
}

// NaN is NaN, whatever its bits.
bool equal(const Tensor& a, const Tensor& b) {
  if (a.numel() != b.numel() || a.dtype() != b.dtype()) return false;
  if (a.bytes() == 0 || std::memcmp(a.raw(), b.raw(), a.bytes()) == 0) return true;
  if (a.dtype() == DType::bf16) return equal(widened(a), widened(b));
  if (a.dtype() != DType::f32) return false;
  const auto x = a.span<float>(), y = b.span<float>();
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::memcmp(&x[i], &y[i], sizeof x[i]) != 0 && !(std::isnan(x[i]) && std::isnan(y[i]))) return false;
  }
  return true;
}

// Runs an op on copies of these tensors, there or in host memory.
std::vector<Tensor> results(const test::OpCase& op, const std::vector<Tensor>& operands, Device* device) {
  std::vector<Tensor> tensors;
  for (const Tensor& operand : operands) {
    if (device != nullptr) {
      tensors.push_back(on_device(*device, operand));
    } else {
      tensors.push_back(host_tensor(operand.shape(), operand.dtype()));
      tensors.back().copy_from(operand);
    }
  }
  op.run(tensors);
  for (Tensor& x : tensors) x = x.to_host();
  return tensors;
}

// The first operand that differs, or -1.
int difference(const test::OpCase& op, const std::vector<Tensor>& got, const std::vector<Tensor>& expected) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (op.operands[i].check && !equal(got[i], expected[i])) return static_cast<int>(i);
  }
  return -1;
}

int difference_in_f32(const test::OpCase& op, Device& device) {
  std::vector<Tensor> operands;
  for (const auto& operand : op.operands) operands.push_back(operand.host);
  return difference(op, results(op, operands, &device), results(op, operands, nullptr));
}

int difference_in_bf16(const test::OpCase& op, Device& device) {
  std::vector<Tensor> narrow, wide;
  std::vector<bool> is_narrow;
  for (const auto& operand : op.operands) {
    is_narrow.push_back(operand.host.dtype() == DType::f32 && !operand.stays_f32);
    narrow.push_back(is_narrow.back() ? narrowed(operand.host) : operand.host);
    wide.push_back(is_narrow.back() ? widened(narrow.back()) : operand.host);
  }
  auto expected = results(op, wide, nullptr);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (is_narrow[i]) expected[i] = narrowed(expected[i]);
  }
  return difference(op, results(op, narrow, &device), expected);
}

}  // namespace

const cuda::KernelApi& counting(const cuda::KernelApi& kernels) {
  counted = &kernels;
  static const cuda::KernelApi api{kernels.list_hash,
                                   [](int kernel, const void* functor, std::size_t bytes, cuda::LaunchShape shape,
                                      const cuda::Access* accesses, std::size_t count, cuda::StreamHandle stream) {
                                     if (static_cast<std::size_t>(kernel) < kKernels) ++launched[kernel];
                                     return counted->launch(kernel, functor, bytes, shape, accesses, count, stream);
                                   }};
  return api;
}

std::string kernels_have_the_bits_of_their_twins(Device& device) {
  int compared = 0;
  std::vector<std::string> wrong;
  const auto note = [&](const test::OpCase& op, const char* type, int operand) {
    ++compared;
    if (operand >= 0) wrong.push_back(fmt::format("{} ({}, operand {})", op.name, type, operand));
  };
  for (const test::OpCase& op : test::op_cases()) {
    // cuBLASLt sums in an order of its own. In bf16, GELU sees what the product stored, which is rounded already.
    if (op.product && device.kind() == "cuda") continue;
    note(op, "f32", difference_in_f32(op, device));
    if (op.has_bf16 && !op.product) note(op, "bf16", difference_in_bf16(op, device));
  }
  expect(wrong.empty(), fmt::format("{} of {} differ: {}", wrong.size(), compared, fmt::join(wrong, ", ")));
  return fmt::format("{} runs of ops, all bits equal", compared);
}

std::string squares_are_summed_exactly(Device& device) {
  std::vector<Tensor> host, there;
  for (const std::int64_t n : {1, 511, 70000}) {
    const Tensor x = host_tensor({n}, DType::f32);
    ops::fill_normal(x, 3.0F, {7, static_cast<std::uint64_t>(n)});
    for (std::int64_t i = 0; i < n; i += 37) x.data<float>()[i] *= i % 2 == 0 ? 1e25F : 1e-25F;
    host.push_back(x);
    there.push_back(on_device(device, x));
  }
  SquareSum expected, got;
  expected.add(host);
  got.add(there);
  expect(std::memcmp(&got, &expected, sizeof got) == 0, fmt::format("{}, expected {}", got.norm(), expected.norm()));
  return fmt::format("norm {:.17g}, all limbs equal", got.norm());
}

std::string every_kernel_was_launched() {
  std::vector<std::string> missing;
  for (std::size_t i = 0; i < kKernels; ++i) {
    if (i == static_cast<std::size_t>(kernels::KernelId::exact_squares_bf16)) continue;  // no op sums squares of bf16
    if (launched[i] == 0) missing.emplace_back(kernels::name_of(static_cast<kernels::KernelId>(i)));
  }
  expect(missing.empty(), fmt::format("{} of {} were not: {}", missing.size(), kKernels, fmt::join(missing, ", ")));
  return fmt::format("{} kernels", kKernels);
}

}  // namespace dtrun::runtime::gpu_check
