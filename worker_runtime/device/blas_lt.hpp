// Matrix products of a device, by cuBLASLt. The library counts columns first: a row-major product is asked of it as the
// transposed one, C^T = B^T A^T.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include "worker_runtime/core/dtype.hpp"
#include "worker_runtime/device/blas_lt_api.hpp"

namespace dtrun::runtime {

class Device;

// c[m, n] = op(a)[m, k] op(b)[k, n] + bias[n], row-major and dense, summed in f32. All of one type, f32 or bf16, or c
// and bias f32 where a and b are bf16. m, n and k are 1 or more; c overlaps nothing else.
struct Product {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  DType dtype = DType::f32;
  bool f32_result = false;  // c and bias are f32 whatever a and b are
  const void* a = nullptr;
  bool transpose_a = false;  // a is [k, m]
  const void* b = nullptr;
  bool transpose_b = false;  // b is [n, k]
  void* c = nullptr;
  const void* bias = nullptr;  // or none
};

// Owned by its Device, made by the first product. Any thread. Remembers what the library advised for a shape; each
// stream has a workspace of its own, which no account is charged for. Fails with DeviceError, MemoryError for the
// workspace.
class BlasLt {
 public:
  BlasLt(Device& device, const BlasLtApi& api);
  BlasLt(const BlasLt&) = delete;
  BlasLt& operator=(const BlasLt&) = delete;
  ~BlasLt();

  // Whether products of f32 may round their inputs to TF32 (10 bits of mantissa). Off unless told.
  void allow_tf32(bool allowed) noexcept { tf32_ = allowed; }

  // On the current stream.
  void multiply(const Product& product);

  // How many shapes the library was asked about.
  std::size_t remembered() const;

 private:
  struct Plan;
  using Key = std::tuple<std::int64_t, std::int64_t, std::int64_t, DType, bool, bool, bool, bool, bool,
                         std::array<unsigned, 4>>;
  Plan& plan_of(const Product& product);
  std::unique_ptr<Plan> make_plan(const Product& product, bool tf32) const;
  std::byte* workspace(std::size_t bytes);
  void check(blas_lt::Status status, const char* what, const Product& product) const;

  Device& device_;
  const BlasLtApi& api_;
  blas_lt::Handle handle_ = nullptr;
  bool tf32_ = false;
  mutable std::mutex mutex_;  // of the plans and workspaces
  std::map<Key, std::unique_ptr<Plan>> plans_;
  std::map<void*, std::byte*> workspaces_;  // by stream
};

}  // namespace dtrun::runtime
