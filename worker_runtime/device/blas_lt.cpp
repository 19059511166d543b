#include "worker_runtime/device/blas_lt.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/device/device.hpp"
#include "worker_runtime/device/error.hpp"

namespace dtrun::runtime {
namespace {

// What the library may use; NVIDIA's advice for compute capability 9.
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

blas_lt::Type type_of(DType dtype) {
  if (dtype == DType::f32) return blas_lt::Type::f32;
  if (dtype == DType::bf16) return blas_lt::Type::bf16;
  throw DeviceError("device", fmt::format("a matrix product of {} elements, expected f32 or bf16", name_of(dtype)));
}

// Alignment in bytes, no more than the library distinguishes.
unsigned alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  return address == 0 ? 256 : std::min(256U, 1U << std::min(__builtin_ctzll(address), 30));
}

// Makes one object of the library and destroys it.
template <class Handle>
class Owned {
 public:
  using Destroy = blas_lt::Status (*)(Handle);
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (handle_ != nullptr) destroy_(handle_);
  }
  Handle* fill(Destroy destroy) {
    destroy_ = destroy;
    return &handle_;
  }
  Handle get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
  Destroy destroy_ = nullptr;
};

}  // namespace

// The library's A is our B and the other way round.
struct BlasLt::Plan {
  Owned<blas_lt::MatmulDesc> desc;
  Owned<blas_lt::MatrixLayout> a, b, c;
  blas_lt::Algo algo{};
  std::size_t workspace_bytes = 0;
};

BlasLt::BlasLt(Device& device, const BlasLtApi& api) : device_(device), api_(api) {
  device_.activate();
  check(api_.create(&handle_), "cublasLtCreate", Product{});
}

BlasLt::~BlasLt() {
  plans_.clear();
  for (const auto& [stream, data] : workspaces_) device_.deallocate(data);
  api_.destroy(handle_);
}

std::size_t BlasLt::remembered() const {
  const std::lock_guard lock(mutex_);
  return plans_.size();
}

void BlasLt::check(blas_lt::Status status, const char* what, const Product& product) const {
  if (status == blas_lt::ok) return;
  const std::string of =
      product.m == 0
          ? std::string()
          : fmt::format(" for [{}, {}]{} x [{}, {}]{} of {}{}{}", product.m, product.k, product.transpose_a ? "^T" : "",
                        product.k, product.n, product.transpose_b ? "^T" : "", name_of(product.dtype),
                        product.f32_result ? " into f32" : "", product.bias != nullptr ? " with bias" : "");
  throw DeviceError("device", fmt::format("device {}: {} failed{}: {} ({})", device_.index(), what, of,
                                          api_.get_status_name(status), api_.get_status_string(status)));
}

std::unique_ptr<BlasLt::Plan> BlasLt::make_plan(const Product& p, bool tf32) const {
  using blas_lt::DescAttribute;
  using blas_lt::PreferenceAttribute;
  auto plan = std::make_unique<Plan>();
  const auto type = type_of(p.dtype), result_type = p.f32_result ? blas_lt::Type::f32 : type;
  const auto compute = tf32 ? blas_lt::Compute::tf32 : blas_lt::Compute::f32;
  check(api_.matmul_desc_create(plan->desc.fill(api_.matmul_desc_destroy), compute, blas_lt::Type::f32),
        "cublasLtMatmulDescCreate", p);
  const auto set = [&](DescAttribute attribute, const auto& value) {
    check(api_.matmul_desc_set_attribute(plan->desc.get(), attribute, &value, sizeof value),
          "cublasLtMatmulDescSetAttribute", p);
  };
  set(DescAttribute::transpose_a, p.transpose_b ? blas_lt::Transpose::yes : blas_lt::Transpose::no);
  set(DescAttribute::transpose_b, p.transpose_a ? blas_lt::Transpose::yes : blas_lt::Transpose::no);
  if (p.bias != nullptr) {
    set(DescAttribute::epilogue, blas_lt::Epilogue::bias);
    set(DescAttribute::bias_type, result_type);
    set(DescAttribute::bias_pointer, p.bias);
  }
  // A row-major [rows, columns] is a [columns, rows] of the library.
  const auto layout = [&](Owned<blas_lt::MatrixLayout>& to, blas_lt::Type of, std::int64_t rows, std::int64_t columns) {
    check(api_.matrix_layout_create(to.fill(api_.matrix_layout_destroy), of, static_cast<std::uint64_t>(columns),
                                    static_cast<std::uint64_t>(rows), columns),
          "cublasLtMatrixLayoutCreate", p);
  };
  layout(plan->a, type, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n);
  layout(plan->b, type, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k);
  layout(plan->c, result_type, p.m, p.n);

  Owned<blas_lt::Preference> preference;
  check(api_.matmul_preference_create(preference.fill(api_.matmul_preference_destroy)),
        "cublasLtMatmulPreferenceCreate", p);
  const auto prefer = [&](PreferenceAttribute attribute, const auto& value) {
    check(api_.matmul_preference_set_attribute(preference.get(), attribute, &value, sizeof value),
          "cublasLtMatmulPreferenceSetAttribute", p);
  };
  prefer(PreferenceAttribute::max_workspace_bytes, kWorkspaceBytes);
  prefer(PreferenceAttribute::min_alignment_a, alignment_of(p.b));
  prefer(PreferenceAttribute::min_alignment_b, alignment_of(p.a));
  prefer(PreferenceAttribute::min_alignment_c, alignment_of(p.c));
  // The bias is loaded in the pieces in which D is stored.
  prefer(PreferenceAttribute::min_alignment_d, std::min(alignment_of(p.c), alignment_of(p.bias)));
  blas_lt::HeuristicResult found{};
  int count = 0;
  check(api_.matmul_algo_get_heuristic(handle_, plan->desc.get(), plan->a.get(), plan->b.get(), plan->c.get(),
                                       plan->c.get(), preference.get(), 1, &found, &count),
        "cublasLtMatmulAlgoGetHeuristic", p);
  check(count < 1 ? blas_lt::not_supported : found.state, "cublasLtMatmulAlgoGetHeuristic", p);
  plan->algo = found.algo;
  plan->workspace_bytes = found.workspace_bytes;
  return plan;
}

BlasLt::Plan& BlasLt::plan_of(const Product& p) {
  const bool tf32 = tf32_ && p.dtype == DType::f32;
  const Key key{p.m,
                p.n,
                p.k,
                p.dtype,
                p.f32_result,
                tf32,
                p.transpose_a,
                p.transpose_b,
                p.bias != nullptr,
                {alignment_of(p.a), alignment_of(p.b), alignment_of(p.c), alignment_of(p.bias)}};
  auto& plan = plans_[key];
  if (!plan) plan = make_plan(p, tf32);
  return *plan;
}

std::byte* BlasLt::workspace(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  DTRUN_ASSERT(bytes <= kWorkspaceBytes);
  auto& data = workspaces_[device_.current().handle()];
  if (data == nullptr) data = device_.allocate(kWorkspaceBytes);
  return data;
}

BlasLt& Device::blas_lt() {
  const std::lock_guard lock(blas_lt_mutex_);
  if (!blas_lt_) {
    if (apis_.blas_lt == nullptr) throw DeviceError("device", "matrix products are not to be had of this device");
    blas_lt_ = std::make_unique<BlasLt>(*this, *apis_.blas_lt);
  }
  return *blas_lt_;
}

void BlasLt::multiply(const Product& p) {
  device_.activate();
  const std::lock_guard lock(mutex_);
  Plan& plan = plan_of(p);
  if (p.bias != nullptr)
    check(api_.matmul_desc_set_attribute(plan.desc.get(), blas_lt::DescAttribute::bias_pointer, &p.bias, sizeof p.bias),
          "cublasLtMatmulDescSetAttribute", p);
  const float one = 1, none = 0;
  check(api_.matmul(handle_, plan.desc.get(), &one, p.b, plan.a.get(), p.a, plan.b.get(), &none, p.c, plan.c.get(), p.c,
                    plan.c.get(), &plan.algo, workspace(plan.workspace_bytes), plan.workspace_bytes,
                    device_.current().handle()),
        "cublasLtMatmul", p);
}

}  // namespace dtrun::runtime
