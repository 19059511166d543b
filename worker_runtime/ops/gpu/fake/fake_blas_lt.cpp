#include "worker_runtime/ops/gpu/fake/fake_blas_lt.hpp"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "worker_runtime/device/fake/fake_cuda.hpp"
#include "worker_runtime/kernels/block.hpp"
#include "worker_runtime/ops/gemm.hpp"
#include "worker_runtime/ops/gpu/fake/fake_objects.hpp"

namespace dtrun::runtime::ops::gpu {
namespace {

using blas_lt::Status;

constexpr std::size_t kWorkspace = 1024;

template <class T>
const T& as(const void* object) {
  return *static_cast<const T*>(object);
}
template <class T>
Status destroy(void* object) {
  if (object == nullptr) return blas_lt::invalid_value;
  delete static_cast<T*>(object);
  return blas_lt::ok;
}

template <class T>
bool take(T& to, const void* value, std::size_t bytes) {
  if (value == nullptr || bytes != sizeof(T)) return false;
  std::memcpy(&to, value, bytes);
  return true;
}

Status set_desc(blas_lt::MatmulDesc object, blas_lt::DescAttribute attribute, const void* value, std::size_t bytes) {
  auto& desc = *static_cast<Desc*>(object);
  const auto set = [&](auto& to) { return take(to, value, bytes) ? blas_lt::ok : blas_lt::invalid_value; };
  switch (attribute) {
    case blas_lt::DescAttribute::transpose_a:
      return set(desc.transpose_a);
    case blas_lt::DescAttribute::transpose_b:
      return set(desc.transpose_b);
    case blas_lt::DescAttribute::epilogue:
      return set(desc.epilogue);
    case blas_lt::DescAttribute::bias_pointer:
      return set(desc.bias);
    case blas_lt::DescAttribute::bias_type:
      return set(desc.bias_type);
  }
  return blas_lt::invalid_value;
}

Status set_preference(blas_lt::Preference object, blas_lt::PreferenceAttribute attribute, const void* value,
                      std::size_t bytes) {
  auto& preference = *static_cast<Preference*>(object);
  if (attribute == blas_lt::PreferenceAttribute::max_workspace_bytes)
    return take(preference.workspace, value, bytes) ? blas_lt::ok : blas_lt::invalid_value;
  const int at = static_cast<int>(attribute) - static_cast<int>(blas_lt::PreferenceAttribute::min_alignment_a);
  std::uint32_t alignment = 0;
  if (at < 0 || at > 3 || !take(alignment, value, bytes)) return blas_lt::invalid_value;
  if (alignment == 0 || (alignment & (alignment - 1)) != 0) return blas_lt::invalid_value;
  preference.alignment[at] = alignment;
  return blas_lt::ok;
}

Status heuristic(blas_lt::Handle handle, blas_lt::MatmulDesc desc, blas_lt::MatrixLayout a, blas_lt::MatrixLayout b,
                 blas_lt::MatrixLayout c, blas_lt::MatrixLayout d, blas_lt::Preference preference, int requested,
                 blas_lt::HeuristicResult* results, int* returned) {
  if (handle == nullptr) return blas_lt::not_initialized;
  for (const void* object : {desc, a, b, c, d, preference}) {
    if (object == nullptr) return blas_lt::invalid_value;
  }
  if (requested < 1 || results == nullptr || returned == nullptr) return blas_lt::invalid_value;
  *returned = 0;
  const Problem problem{as<Desc>(desc), as<Layout>(a), as<Layout>(b), as<Layout>(c), as<Layout>(d)};
  if (const Status status = check_problem(problem); status != blas_lt::ok) return status;
  const auto& wish = as<Preference>(preference);
  if (std::min(wish.alignment[0], wish.alignment[1]) < size_of(problem.a.type) ||
      std::min(wish.alignment[2], wish.alignment[3]) < size_of(problem.d.type))
    return blas_lt::not_supported;
  Found found{kMagic, hash_of(problem), {}, std::min(kWorkspace, wish.workspace)};
  std::copy_n(wish.alignment, 4, found.alignment);
  *results = {};
  std::memcpy(&results->algo, &found, sizeof found);
  results->workspace_bytes = found.workspace;
  results->waves_count = 1;
  *returned = 1;
  return blas_lt::ok;
}

std::vector<float> values_of(const void* from, std::size_t count, blas_lt::Type type) {
  std::vector<float> values(count);
  if (type == blas_lt::Type::f32) {
    std::copy_n(static_cast<const float*>(from), count, values.begin());
  } else {
    for (std::size_t i = 0; i < count; ++i) values[i] = kernels::load(static_cast<const kernels::Bf16*>(from) + i);
  }
  return values;
}

// Rows first, so that A and B change places. Widened exactly, summed in f32, rounded once. Between copies, since the
// threads that share a product may not touch memory of the device: this one alone may.
void compute(Gemm product, blas_lt::Type type, blas_lt::Type result_type) {
  const auto size = [](std::int64_t rows, std::int64_t columns) { return static_cast<std::size_t>(rows * columns); };
  const auto a = values_of(product.a, size(product.m, product.k), type);
  const auto b = values_of(product.b, size(product.k, product.n), type);
  const auto bias = values_of(product.bias, product.bias != nullptr ? size(1, product.n) : 0, result_type);
  std::vector<float> c(size(product.m, product.n));
  float* const to = product.c;
  product.a = a.data();
  product.b = b.data();
  if (product.bias != nullptr) product.bias = bias.data();
  product.c = c.data();
  gemm(product);
  if (result_type == blas_lt::Type::f32) {
    std::ranges::copy(c, to);
  } else {
    for (std::size_t i = 0; i < c.size(); ++i) kernels::store(reinterpret_cast<kernels::Bf16*>(to) + i, c[i]);
  }
}

bool aligned(const void* data, std::size_t alignment) {
  return reinterpret_cast<std::uintptr_t>(data) % alignment == 0;
}

Status matmul(blas_lt::Handle handle, blas_lt::MatmulDesc desc_object, const void* alpha, const void* a,
              blas_lt::MatrixLayout a_layout, const void* b, blas_lt::MatrixLayout b_layout, const void* beta,
              const void* c, blas_lt::MatrixLayout c_layout, void* d, blas_lt::MatrixLayout d_layout,
              const blas_lt::Algo* algo, void* workspace, std::size_t workspace_bytes, void* stream) {
  if (handle == nullptr) return blas_lt::not_initialized;
  for (const void* needed : {desc_object, a_layout, b_layout, c_layout, d_layout}) {
    if (needed == nullptr) return blas_lt::invalid_value;
  }
  for (const void* needed : {alpha, beta, a, b, c, static_cast<const void*>(d), static_cast<const void*>(algo)}) {
    if (needed == nullptr) return blas_lt::invalid_value;
  }
  const auto& desc = as<Desc>(desc_object);
  const Problem p{desc, as<Layout>(a_layout), as<Layout>(b_layout), as<Layout>(c_layout), as<Layout>(d_layout)};
  if (const Status status = check_problem(p); status != blas_lt::ok) return status;
  Found found{};
  std::memcpy(&found, algo, sizeof found);
  if (found.magic != kMagic || found.problem != hash_of(p)) return blas_lt::invalid_value;
  if (!aligned(a, found.alignment[0]) || !aligned(b, found.alignment[1]) || !aligned(c, found.alignment[2]) ||
      !aligned(d, found.alignment[3]) || !aligned(workspace, 256))
    return blas_lt::invalid_value;
  if (workspace_bytes < found.workspace || (found.workspace > 0 && workspace == nullptr)) return blas_lt::invalid_value;
  const bool with_bias = desc.epilogue == blas_lt::Epilogue::bias;
  if (with_bias && (desc.bias == nullptr || !aligned(desc.bias, found.alignment[3]))) return blas_lt::invalid_value;
  if (as<float>(alpha) != 1.0F || as<float>(beta) != 0.0F || c != d) return blas_lt::not_supported;

  const auto access = [](const void* data, std::size_t bytes, bool writes) {
    return cuda::Access{static_cast<const std::byte*>(data), bytes, writes};
  };
  std::vector<cuda::Access> accesses{access(a, bytes_of(p.a), false), access(b, bytes_of(p.b), false),
                                     access(d, bytes_of(p.d), true)};
  if (with_bias) accesses.push_back(access(desc.bias, p.d.rows * size_of(p.d.type), false));
  if (found.workspace > 0) accesses.push_back(access(workspace, found.workspace, true));
  const Gemm product{.m = static_cast<std::int64_t>(p.d.cols),
                     .n = static_cast<std::int64_t>(p.d.rows),
                     .k = static_cast<std::int64_t>(p.k()),
                     .a = static_cast<const float*>(b),
                     .transpose_a = desc.transpose_b == blas_lt::Transpose::yes,
                     .b = static_cast<const float*>(a),
                     .transpose_b = desc.transpose_a == blas_lt::Transpose::yes,
                     .c = static_cast<float*>(d),
                     .bias = with_bias ? static_cast<const float*>(desc.bias) : nullptr};
  const auto result =
      fake::enqueue(stream, {"cublasLtMatmul", std::move(accesses), [product, type = p.a.type, result_type = p.d.type] {
                               compute(product, type, result_type);
                               return fake::Poll::done;
                             }});
  return result == cuda::kSuccess ? blas_lt::ok : blas_lt::execution_failed;
}

const char* name_of_status(Status status) {
  switch (status) {
    case blas_lt::ok:
      return "CUBLAS_STATUS_SUCCESS";
    case blas_lt::not_initialized:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case blas_lt::invalid_value:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case blas_lt::execution_failed:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case blas_lt::not_supported:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
  }
}

template <class T>
Status give(void** to, T* made) {
  *to = made;
  return blas_lt::ok;
}

BlasLtApi make_api() {
  BlasLtApi api{};
  api.get_version = [] { return std::size_t{130000}; };
  api.create = [](blas_lt::Handle* to) { return give(to, new Handle); };
  api.destroy = destroy<Handle>;
  api.matmul_desc_create = [](blas_lt::MatmulDesc* to, blas_lt::Compute compute_type, blas_lt::Type scale) {
    return give(to, new Desc{{}, compute_type, scale});
  };
  api.matmul_desc_destroy = destroy<Desc>;
  api.matmul_desc_set_attribute = set_desc;
  api.matrix_layout_create = [](blas_lt::MatrixLayout* to, blas_lt::Type type, std::uint64_t rows, std::uint64_t cols,
                                std::int64_t ld) {
    return give(to, new Layout{{}, type, rows, cols, ld});
  };
  api.matrix_layout_destroy = destroy<Layout>;
  api.matmul_preference_create = [](blas_lt::Preference* to) { return give(to, new Preference); };
  api.matmul_preference_destroy = destroy<Preference>;
  api.matmul_preference_set_attribute = set_preference;
  api.matmul_algo_get_heuristic = heuristic;
  api.matmul = matmul;
  api.get_status_name = name_of_status;
  api.get_status_string = [](Status) { return "the fake says so"; };
  return api;
}

}  // namespace

const BlasLtApi& fake_blas_lt() {
  static const BlasLtApi api = make_api();
  return api;
}

int fake_blas_lt_objects() { return live_objects; }

}  // namespace dtrun::runtime::ops::gpu
