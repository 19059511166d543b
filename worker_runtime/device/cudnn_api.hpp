// The part of cuDNN 9's backend that dtrun calls, as a table of function pointers: filled from the real library
// (device/libraries.hpp) or by the fake (ops/gpu/fake/fake_cudnn.hpp). Values of enumerations are those of
// cudnn_graph.h; a test compares them where that header is installed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dtrun::runtime {

namespace cudnn {
using Status = int;  // cudnnStatus_t; thousands are the kind of error
inline constexpr Status ok = 0;
inline constexpr Status not_initialized = 1001;
inline constexpr Status bad_param = 2000;
inline constexpr Status not_supported = 3000;
inline constexpr Status execution_failed = 5000;
using Handle = void*;
using Descriptor = void*;  // cudnnBackendDescriptor_t

enum class Kind : int {  // cudnnBackendDescriptorType_t
  pointwise = 0,
  engine = 2,
  engine_config = 3,
  heuristics = 4,
  plan = 5,
  pointwise_operation = 13,
  graph = 15,
  variant_pack = 16,
  tensor = 17,
  matmul = 18,
  matmul_operation = 19,
  reduction = 21,
  reduction_operation = 22,
  reshape_operation = 31,
  device_properties = 38,
};

enum class Attribute : int {  // cudnnBackendAttributeName_t
  pointwise_mode = 0,
  pointwise_type = 1,
  pointwise_axis = 9,
  heuristics_mode = 200,
  heuristics_graph = 201,
  heuristics_results = 202,
  heuristics_device = 204,
  config_engine = 300,
  plan_handle = 400,
  plan_config = 401,
  plan_workspace_bytes = 402,
  plan_device = 407,
  pointwise_operation_of = 750,
  pointwise_operation_x = 751,
  pointwise_operation_b = 752,
  pointwise_operation_y = 753,
  pointwise_operation_t = 758,
  graph_handle = 800,
  graph_operations = 801,
  tensor_alignment = 900,
  tensor_type = 901,
  tensor_extents = 902,
  tensor_strides = 903,
  tensor_id = 906,
  tensor_is_virtual = 907,
  tensor_is_by_value = 908,
  pack_ids = 1000,
  pack_pointers = 1001,
  pack_workspace = 1003,
  engine_numerical_notes = 1303,
  matmul_type = 1500,
  matmul_operation_a = 1520,
  matmul_operation_b = 1521,
  matmul_operation_c = 1522,
  matmul_operation_of = 1523,
  reduction_operator = 1600,
  reduction_type = 1601,
  reduction_operation_x = 1610,
  reduction_operation_y = 1611,
  reduction_operation_of = 1612,
  reshape_operation_x = 2200,
  reshape_operation_y = 2201,
  device_json = 2702,
};

enum class ValueType : int {  // cudnnBackendAttributeType_t
  handle = 0,
  data_type = 1,
  boolean = 2,
  i64 = 3,
  pointer = 6,
  heuristics_mode = 8,
  numerical_note = 11,
  pointwise_mode = 14,
  descriptor = 15,
  reduction_operator = 18,
  character = 24,
};

enum class Type : int { f32 = 0, i32 = 4, bf16 = 9, boolean = 11 };  // cudnnDataType_t
enum class Pointwise : int {                                         // cudnnPointwiseMode_t
  add = 0,
  mul = 1,
  div = 6,
  sub = 9,
  exp = 13,
  log = 15,
  greater_or_equal = 303,
  index = 501,
  select = 601,
};
enum class Reduce : int { add = 0, max = 3 };                     // cudnnReduceTensorOp_t
enum class Heuristics : int { fallback = 2, best = 3 };           // cudnnBackendHeurMode_t
enum class Note : int { tensor_core = 0, nondeterministic = 4 };  // cudnnBackendNumericalNote_t
inline constexpr std::int64_t kMostNotes = 32;
}  // namespace cudnn

// Names are those of the library without the prefixes "cudnn" and "cudnnBackend".
struct CudnnApi {
  std::size_t (*get_version)();  // 91900 is 9.19.0
  const char* (*get_error_string)(cudnn::Status status);
  void (*get_last_error_string)(char* text, std::size_t bytes);  // of this thread; clears it
  cudnn::Status (*create)(cudnn::Handle* handle);
  cudnn::Status (*destroy)(cudnn::Handle handle);
  cudnn::Status (*set_stream)(cudnn::Handle handle, void* stream);
  cudnn::Status (*create_descriptor)(cudnn::Kind kind, cudnn::Descriptor* descriptor);
  cudnn::Status (*destroy_descriptor)(cudnn::Descriptor descriptor);
  cudnn::Status (*finalize)(cudnn::Descriptor descriptor);
  cudnn::Status (*set_attribute)(cudnn::Descriptor descriptor, cudnn::Attribute attribute, cudnn::ValueType type,
                                 std::int64_t count, const void* values);
  cudnn::Status (*get_attribute)(cudnn::Descriptor descriptor, cudnn::Attribute attribute, cudnn::ValueType type,
                                 std::int64_t wanted, std::int64_t* count, void* values);
  cudnn::Status (*execute)(cudnn::Handle handle, cudnn::Descriptor plan, cudnn::Descriptor pack);
};

}  // namespace dtrun::runtime
