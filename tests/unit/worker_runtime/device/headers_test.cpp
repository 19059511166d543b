// The declarations of dtrun's own tables beside the headers of the real libraries: nothing here runs, it has to
// compile.
#if defined(DTRUN_HAS_CUBLASLT)
#include <cublasLt.h>
#endif
#if defined(DTRUN_HAS_NCCL)
#include <nccl.h>
#endif

#include <cstddef>
#include <cstdio>
#include <type_traits>

#include "tests/catch.hpp"
#include "worker_runtime/comm/nccl/nccl_api.hpp"
#include "worker_runtime/device/blas_lt_api.hpp"

namespace dtrun::runtime {
namespace {

#if defined(DTRUN_HAS_CUBLASLT)
static_assert(sizeof(blas_lt::Algo) == sizeof(cublasLtMatmulAlgo_t));
static_assert(sizeof(blas_lt::HeuristicResult) == sizeof(cublasLtMatmulHeuristicResult_t));
static_assert(offsetof(blas_lt::HeuristicResult, workspace_bytes) ==
              offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
static_assert(offsetof(blas_lt::HeuristicResult, state) == offsetof(cublasLtMatmulHeuristicResult_t, state));
static_assert(sizeof(blas_lt::Status) == sizeof(cublasStatus_t) && sizeof(int) == sizeof(cudaDataType_t));
static_assert(sizeof(int) == sizeof(cublasComputeType_t) && sizeof(blas_lt::Epilogue) == sizeof(cublasLtEpilogue_t));
static_assert(sizeof(blas_lt::Transpose) == sizeof(cublasOperation_t));
static_assert(std::is_pointer_v<cublasLtHandle_t> && std::is_pointer_v<cublasLtMatmulDesc_t> &&
              std::is_pointer_v<cublasLtMatrixLayout_t> && std::is_pointer_v<cublasLtMatmulPreference_t>);
static_assert(blas_lt::ok == CUBLAS_STATUS_SUCCESS && blas_lt::not_initialized == CUBLAS_STATUS_NOT_INITIALIZED);
static_assert(blas_lt::invalid_value == CUBLAS_STATUS_INVALID_VALUE);
static_assert(blas_lt::execution_failed == CUBLAS_STATUS_EXECUTION_FAILED);
static_assert(blas_lt::not_supported == CUBLAS_STATUS_NOT_SUPPORTED);
static_assert(int(blas_lt::Type::f32) == CUDA_R_32F && int(blas_lt::Type::bf16) == CUDA_R_16BF);
static_assert(int(blas_lt::Compute::f32) == CUBLAS_COMPUTE_32F);
static_assert(int(blas_lt::Compute::tf32) == CUBLAS_COMPUTE_32F_FAST_TF32);
static_assert(int(blas_lt::Transpose::no) == CUBLAS_OP_N && int(blas_lt::Transpose::yes) == CUBLAS_OP_T);
static_assert(int(blas_lt::DescAttribute::transpose_a) == CUBLASLT_MATMUL_DESC_TRANSA);
static_assert(int(blas_lt::DescAttribute::transpose_b) == CUBLASLT_MATMUL_DESC_TRANSB);
static_assert(int(blas_lt::DescAttribute::epilogue) == CUBLASLT_MATMUL_DESC_EPILOGUE);
static_assert(int(blas_lt::DescAttribute::bias_pointer) == CUBLASLT_MATMUL_DESC_BIAS_POINTER);
static_assert(int(blas_lt::DescAttribute::bias_type) == CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE);
static_assert(int(blas_lt::Epilogue::none) == CUBLASLT_EPILOGUE_DEFAULT);
static_assert(int(blas_lt::Epilogue::bias) == CUBLASLT_EPILOGUE_BIAS);
static_assert(int(blas_lt::PreferenceAttribute::max_workspace_bytes) == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(int(blas_lt::PreferenceAttribute::min_alignment_a) == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
static_assert(int(blas_lt::PreferenceAttribute::min_alignment_b) == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
static_assert(int(blas_lt::PreferenceAttribute::min_alignment_c) == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
static_assert(int(blas_lt::PreferenceAttribute::min_alignment_d) == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
#endif

#if defined(DTRUN_HAS_NCCL)
static_assert(sizeof(nccl::UniqueId) == sizeof(ncclUniqueId) && sizeof(nccl::Result) == sizeof(ncclResult_t));
static_assert(int(nccl::success) == ncclSuccess && int(nccl::unhandled_cuda_error) == ncclUnhandledCudaError);
static_assert(int(nccl::system_error) == ncclSystemError && int(nccl::internal_error) == ncclInternalError);
static_assert(int(nccl::invalid_argument) == ncclInvalidArgument && int(nccl::invalid_usage) == ncclInvalidUsage);
static_assert(int(nccl::remote_error) == ncclRemoteError && int(nccl::in_progress) == ncclInProgress);
static_assert(int(nccl::DataType::i8) == ncclInt8 && int(nccl::DataType::u8) == ncclUint8);
static_assert(int(nccl::DataType::i32) == ncclInt32 && int(nccl::DataType::u32) == ncclUint32);
static_assert(int(nccl::DataType::i64) == ncclInt64 && int(nccl::DataType::u64) == ncclUint64);
static_assert(int(nccl::DataType::f16) == ncclFloat16 && int(nccl::DataType::f32) == ncclFloat32);
static_assert(int(nccl::DataType::f64) == ncclFloat64 && int(nccl::DataType::bf16) == ncclBfloat16);
static_assert(int(nccl::Op::sum) == ncclSum && int(nccl::Op::product) == ncclProd && int(nccl::Op::max) == ncclMax);
static_assert(int(nccl::Op::min) == ncclMin && int(nccl::Op::avg) == ncclAvg);
// Fields are compared as far as the header of this version has them.
static_assert(offsetof(nccl::Config, size) == offsetof(ncclConfig_t, size));
static_assert(offsetof(nccl::Config, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(nccl::Config, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(nccl::Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(nccl::Config, cga_cluster_size) == offsetof(ncclConfig_t, cgaClusterSize));
static_assert(offsetof(nccl::Config, min_ctas) == offsetof(ncclConfig_t, minCTAs));
static_assert(offsetof(nccl::Config, max_ctas) == offsetof(ncclConfig_t, maxCTAs));
static_assert(offsetof(nccl::Config, net_name) == offsetof(ncclConfig_t, netName));
static_assert(offsetof(nccl::Config, split_share) == offsetof(ncclConfig_t, splitShare));
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
static_assert(offsetof(nccl::Config, traffic_class) == offsetof(ncclConfig_t, trafficClass));
static_assert(offsetof(nccl::Config, comm_name) == offsetof(ncclConfig_t, commName));
static_assert(offsetof(nccl::Config, collnet_enable) == offsetof(ncclConfig_t, collnetEnable));
static_assert(offsetof(nccl::Config, cta_policy) == offsetof(ncclConfig_t, CTAPolicy));
static_assert(offsetof(nccl::Config, shrink_share) == offsetof(ncclConfig_t, shrinkShare));
static_assert(offsetof(nccl::Config, nvls_ctas) == offsetof(ncclConfig_t, nvlsCTAs));
#endif
#endif

}  // namespace

TEST_CASE("own declarations of cuBLASLt are those of its header") {
#if !defined(DTRUN_HAS_CUBLASLT)
  std::puts("skipped: no cublasLt.h is installed");
#endif
}

TEST_CASE("own declarations of NCCL are those of its header") {
#if !defined(DTRUN_HAS_NCCL)
  std::puts("skipped: no nccl.h is installed");
#endif
}

}  // namespace dtrun::runtime
