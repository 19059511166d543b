#include "worker_runtime/ops/gpu/fake/fake_objects.hpp"

#include <limits>

namespace dtrun::runtime::ops::gpu {

using blas_lt::Status;

namespace {

Status check_layout(const Layout& layout) {
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max());
  if (layout.rows == 0 || layout.cols == 0 || layout.ld < static_cast<std::int64_t>(layout.rows))
    return blas_lt::invalid_value;
  if (layout.rows > kMost || layout.cols > kMost) return blas_lt::not_supported;
  // gemm has dense operands only.
  return layout.ld == static_cast<std::int64_t>(layout.rows) ? blas_lt::ok : blas_lt::not_supported;
}

}  // namespace

Status check_problem(const Problem& p) {
  for (const Layout* layout : {&p.a, &p.b, &p.c, &p.d}) {
    if (const Status status = check_layout(*layout); status != blas_lt::ok) return status;
  }
  const bool f32 = p.d.type == blas_lt::Type::f32;
  if (!f32 && p.d.type != blas_lt::Type::bf16) return blas_lt::not_supported;
  const bool narrow_inputs = p.a.type == blas_lt::Type::bf16;
  if (p.b.type != p.a.type || p.c.type != p.d.type || (p.a.type != p.d.type && !(f32 && narrow_inputs)))
    return blas_lt::not_supported;
  const bool of_a = p.desc.transpose_a == blas_lt::Transpose::yes, of_b = p.desc.transpose_b == blas_lt::Transpose::yes;
  if ((of_a ? p.a.cols : p.a.rows) != p.d.rows || (of_b ? p.b.rows : p.b.cols) != p.d.cols ||
      (of_b ? p.b.cols : p.b.rows) != p.k() || p.c.rows != p.d.rows || p.c.cols != p.d.cols)
    return blas_lt::invalid_value;
  if (p.desc.scale != blas_lt::Type::f32) return blas_lt::not_supported;
  if (p.desc.compute != blas_lt::Compute::f32 && !(!narrow_inputs && p.desc.compute == blas_lt::Compute::tf32))
    return blas_lt::not_supported;
  if (p.desc.epilogue != blas_lt::Epilogue::none && p.desc.epilogue != blas_lt::Epilogue::bias)
    return blas_lt::not_supported;
  if (p.desc.epilogue == blas_lt::Epilogue::bias && p.desc.bias_type >= 0 &&
      p.desc.bias_type != static_cast<int>(p.d.type))
    return blas_lt::not_supported;
  return blas_lt::ok;
}

std::uint64_t hash_of(const Problem& p) {
  std::uint64_t hash = 14695981039346656037U;
  for (const std::uint64_t value :
       {p.d.rows, p.d.cols, p.k(), static_cast<std::uint64_t>(p.desc.transpose_a),
        static_cast<std::uint64_t>(p.desc.transpose_b), static_cast<std::uint64_t>(p.desc.epilogue),
        static_cast<std::uint64_t>(p.desc.compute), static_cast<std::uint64_t>(p.a.type),
        static_cast<std::uint64_t>(p.d.type)})
    hash = (hash ^ value) * 1099511628211U;
  return hash;
}

}  // namespace dtrun::runtime::ops::gpu
