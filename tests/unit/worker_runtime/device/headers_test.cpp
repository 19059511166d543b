// The declarations of dtrun's own tables beside the headers of the real libraries: nothing here runs, it has to
// compile.
#if defined(DTRUN_HAS_CUBLASLT)
#include <cublasLt.h>
#endif
#if defined(DTRUN_HAS_CUDNN)
#include <cudnn_graph.h>
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
#include "worker_runtime/device/cudnn_api.hpp"

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

#if defined(DTRUN_HAS_CUDNN)
static_assert(sizeof(cudnn::Status) == sizeof(cudnnStatus_t) && std::is_pointer_v<cudnnHandle_t>);
static_assert(std::is_same_v<cudnn::Descriptor, cudnnBackendDescriptor_t>);
static_assert(sizeof(cudnn::Kind) == sizeof(cudnnBackendDescriptorType_t));
static_assert(sizeof(cudnn::Attribute) == sizeof(cudnnBackendAttributeName_t));
static_assert(sizeof(cudnn::ValueType) == sizeof(cudnnBackendAttributeType_t));
static_assert(sizeof(cudnn::Type) == sizeof(cudnnDataType_t) && sizeof(cudnn::Reduce) == sizeof(cudnnReduceTensorOp_t));
static_assert(sizeof(cudnn::Pointwise) == sizeof(cudnnPointwiseMode_t));
static_assert(sizeof(cudnn::Heuristics) == sizeof(cudnnBackendHeurMode_t));
static_assert(sizeof(cudnn::Note) == sizeof(cudnnBackendNumericalNote_t));
static_assert(cudnn::kMostNotes >= CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
static_assert(cudnn::ok == CUDNN_STATUS_SUCCESS && cudnn::not_initialized == CUDNN_STATUS_NOT_INITIALIZED);
static_assert(cudnn::bad_param == CUDNN_STATUS_BAD_PARAM && cudnn::not_supported == CUDNN_STATUS_NOT_SUPPORTED);
static_assert(cudnn::execution_failed == CUDNN_STATUS_EXECUTION_FAILED);
static_assert(int(cudnn::Kind::pointwise) == CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
static_assert(int(cudnn::Kind::engine) == CUDNN_BACKEND_ENGINE_DESCRIPTOR);
static_assert(int(cudnn::Kind::engine_config) == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
static_assert(int(cudnn::Kind::heuristics) == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
static_assert(int(cudnn::Kind::plan) == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
static_assert(int(cudnn::Kind::pointwise_operation) == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
static_assert(int(cudnn::Kind::graph) == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
static_assert(int(cudnn::Kind::variant_pack) == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
static_assert(int(cudnn::Kind::tensor) == CUDNN_BACKEND_TENSOR_DESCRIPTOR);
static_assert(int(cudnn::Kind::matmul) == CUDNN_BACKEND_MATMUL_DESCRIPTOR);
static_assert(int(cudnn::Kind::matmul_operation) == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
static_assert(int(cudnn::Kind::reduction) == CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
static_assert(int(cudnn::Kind::reduction_operation) == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
static_assert(int(cudnn::Kind::reshape_operation) == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
static_assert(int(cudnn::Kind::device_properties) == CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
static_assert(int(cudnn::Attribute::pointwise_mode) == CUDNN_ATTR_POINTWISE_MODE);
static_assert(int(cudnn::Attribute::pointwise_type) == CUDNN_ATTR_POINTWISE_MATH_PREC);
static_assert(int(cudnn::Attribute::pointwise_axis) == CUDNN_ATTR_POINTWISE_AXIS);
static_assert(int(cudnn::Attribute::heuristics_mode) == CUDNN_ATTR_ENGINEHEUR_MODE);
static_assert(int(cudnn::Attribute::heuristics_graph) == CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
static_assert(int(cudnn::Attribute::heuristics_results) == CUDNN_ATTR_ENGINEHEUR_RESULTS);
static_assert(int(cudnn::Attribute::heuristics_device) == CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
static_assert(int(cudnn::Attribute::config_engine) == CUDNN_ATTR_ENGINECFG_ENGINE);
static_assert(int(cudnn::Attribute::plan_handle) == CUDNN_ATTR_EXECUTION_PLAN_HANDLE);
static_assert(int(cudnn::Attribute::plan_config) == CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
static_assert(int(cudnn::Attribute::plan_workspace_bytes) == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
static_assert(int(cudnn::Attribute::plan_device) == CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
static_assert(int(cudnn::Attribute::pointwise_operation_of) == CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
static_assert(int(cudnn::Attribute::pointwise_operation_x) == CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
static_assert(int(cudnn::Attribute::pointwise_operation_b) == CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
static_assert(int(cudnn::Attribute::pointwise_operation_y) == CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
static_assert(int(cudnn::Attribute::pointwise_operation_t) == CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
static_assert(int(cudnn::Attribute::graph_handle) == CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
static_assert(int(cudnn::Attribute::graph_operations) == CUDNN_ATTR_OPERATIONGRAPH_OPS);
static_assert(int(cudnn::Attribute::tensor_alignment) == CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
static_assert(int(cudnn::Attribute::tensor_type) == CUDNN_ATTR_TENSOR_DATA_TYPE);
static_assert(int(cudnn::Attribute::tensor_extents) == CUDNN_ATTR_TENSOR_DIMENSIONS);
static_assert(int(cudnn::Attribute::tensor_strides) == CUDNN_ATTR_TENSOR_STRIDES);
static_assert(int(cudnn::Attribute::tensor_id) == CUDNN_ATTR_TENSOR_UNIQUE_ID);
static_assert(int(cudnn::Attribute::tensor_is_virtual) == CUDNN_ATTR_TENSOR_IS_VIRTUAL);
static_assert(int(cudnn::Attribute::tensor_is_by_value) == CUDNN_ATTR_TENSOR_IS_BY_VALUE);
static_assert(int(cudnn::Attribute::pack_ids) == CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
static_assert(int(cudnn::Attribute::pack_pointers) == CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
static_assert(int(cudnn::Attribute::pack_workspace) == CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
static_assert(int(cudnn::Attribute::engine_numerical_notes) == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE);
static_assert(int(cudnn::Attribute::matmul_type) == CUDNN_ATTR_MATMUL_COMP_TYPE);
static_assert(int(cudnn::Attribute::matmul_operation_a) == CUDNN_ATTR_OPERATION_MATMUL_ADESC);
static_assert(int(cudnn::Attribute::matmul_operation_b) == CUDNN_ATTR_OPERATION_MATMUL_BDESC);
static_assert(int(cudnn::Attribute::matmul_operation_c) == CUDNN_ATTR_OPERATION_MATMUL_CDESC);
static_assert(int(cudnn::Attribute::matmul_operation_of) == CUDNN_ATTR_OPERATION_MATMUL_DESC);
static_assert(int(cudnn::Attribute::reduction_operator) == CUDNN_ATTR_REDUCTION_OPERATOR);
static_assert(int(cudnn::Attribute::reduction_type) == CUDNN_ATTR_REDUCTION_COMP_TYPE);
static_assert(int(cudnn::Attribute::reduction_operation_x) == CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
static_assert(int(cudnn::Attribute::reduction_operation_y) == CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
static_assert(int(cudnn::Attribute::reduction_operation_of) == CUDNN_ATTR_OPERATION_REDUCTION_DESC);
static_assert(int(cudnn::Attribute::reshape_operation_x) == CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
static_assert(int(cudnn::Attribute::reshape_operation_y) == CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
static_assert(int(cudnn::Attribute::device_json) == CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION);
static_assert(int(cudnn::ValueType::handle) == CUDNN_TYPE_HANDLE);
static_assert(int(cudnn::ValueType::data_type) == CUDNN_TYPE_DATA_TYPE);
static_assert(int(cudnn::ValueType::boolean) == CUDNN_TYPE_BOOLEAN);
static_assert(int(cudnn::ValueType::i64) == CUDNN_TYPE_INT64);
static_assert(int(cudnn::ValueType::pointer) == CUDNN_TYPE_VOID_PTR);
static_assert(int(cudnn::ValueType::heuristics_mode) == CUDNN_TYPE_HEUR_MODE);
static_assert(int(cudnn::ValueType::numerical_note) == CUDNN_TYPE_NUMERICAL_NOTE);
static_assert(int(cudnn::ValueType::pointwise_mode) == CUDNN_TYPE_POINTWISE_MODE);
static_assert(int(cudnn::ValueType::descriptor) == CUDNN_TYPE_BACKEND_DESCRIPTOR);
static_assert(int(cudnn::ValueType::reduction_operator) == CUDNN_TYPE_REDUCTION_OPERATOR_TYPE);
static_assert(int(cudnn::ValueType::character) == CUDNN_TYPE_CHAR);
static_assert(int(cudnn::Type::f32) == CUDNN_DATA_FLOAT);
static_assert(int(cudnn::Type::i32) == CUDNN_DATA_INT32);
static_assert(int(cudnn::Type::bf16) == CUDNN_DATA_BFLOAT16);
static_assert(int(cudnn::Type::boolean) == CUDNN_DATA_BOOLEAN);
static_assert(int(cudnn::Pointwise::add) == CUDNN_POINTWISE_ADD);
static_assert(int(cudnn::Pointwise::mul) == CUDNN_POINTWISE_MUL);
static_assert(int(cudnn::Pointwise::div) == CUDNN_POINTWISE_DIV);
static_assert(int(cudnn::Pointwise::sub) == CUDNN_POINTWISE_SUB);
static_assert(int(cudnn::Pointwise::exp) == CUDNN_POINTWISE_EXP);
static_assert(int(cudnn::Pointwise::log) == CUDNN_POINTWISE_LOG);
static_assert(int(cudnn::Pointwise::greater_or_equal) == CUDNN_POINTWISE_CMP_GE);
static_assert(int(cudnn::Pointwise::index) == CUDNN_POINTWISE_GEN_INDEX);
static_assert(int(cudnn::Pointwise::select) == CUDNN_POINTWISE_BINARY_SELECT);
static_assert(int(cudnn::Reduce::add) == CUDNN_REDUCE_TENSOR_ADD && int(cudnn::Reduce::max) == CUDNN_REDUCE_TENSOR_MAX);
static_assert(int(cudnn::Heuristics::best) == CUDNN_HEUR_MODE_A);
static_assert(int(cudnn::Heuristics::fallback) == CUDNN_HEUR_MODE_FALLBACK);
static_assert(int(cudnn::Note::tensor_core) == CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
static_assert(int(cudnn::Note::nondeterministic) == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
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

TEST_CASE("own declarations of cuDNN are those of its header") {
#if !defined(DTRUN_HAS_CUDNN)
  std::puts("skipped: no cudnn_graph.h is installed");
#endif
}

TEST_CASE("own declarations of NCCL are those of its header") {
#if !defined(DTRUN_HAS_NCCL)
  std::puts("skipped: no nccl.h is installed");
#endif
}

}  // namespace dtrun::runtime
