#include "worker_runtime/ops/gpu/fake/fake_cudnn_objects.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace dtrun::runtime::ops::gpu {
namespace {

using cudnn::Attribute;
using cudnn::Kind;
using cudnn::ValueType;

struct Rule {
  Kind kind;
  Attribute attribute;
  ValueType type;
  std::int64_t count;  // 0: one or more
  bool needed;
  Kind refers = Kind::tensor;  // of descriptors
};

// All that may be set, in the order of device/cudnn_api.hpp.
constexpr Rule kRules[] = {
    {Kind::pointwise, Attribute::pointwise_mode, ValueType::pointwise_mode, 1, true},
    {Kind::pointwise, Attribute::pointwise_type, ValueType::data_type, 1, true},
    {Kind::pointwise, Attribute::pointwise_axis, ValueType::i64, 1, false},
    {Kind::heuristics, Attribute::heuristics_mode, ValueType::heuristics_mode, 1, true},
    {Kind::heuristics, Attribute::heuristics_graph, ValueType::descriptor, 1, true, Kind::graph},
    {Kind::plan, Attribute::plan_handle, ValueType::handle, 1, true},
    {Kind::plan, Attribute::plan_config, ValueType::descriptor, 1, true, Kind::engine_config},
    {Kind::pointwise_operation, Attribute::pointwise_operation_of, ValueType::descriptor, 1, true, Kind::pointwise},
    {Kind::pointwise_operation, Attribute::pointwise_operation_x, ValueType::descriptor, 1, true},
    {Kind::pointwise_operation, Attribute::pointwise_operation_b, ValueType::descriptor, 1, false},
    {Kind::pointwise_operation, Attribute::pointwise_operation_y, ValueType::descriptor, 1, true},
    {Kind::pointwise_operation, Attribute::pointwise_operation_t, ValueType::descriptor, 1, false},
    {Kind::graph, Attribute::graph_handle, ValueType::handle, 1, true},
    {Kind::graph, Attribute::graph_operations, ValueType::descriptor, 0, true},
    {Kind::tensor, Attribute::tensor_alignment, ValueType::i64, 1, true},
    {Kind::tensor, Attribute::tensor_type, ValueType::data_type, 1, true},
    {Kind::tensor, Attribute::tensor_extents, ValueType::i64, 4, true},
    {Kind::tensor, Attribute::tensor_strides, ValueType::i64, 4, true},
    {Kind::tensor, Attribute::tensor_id, ValueType::i64, 1, true},
    {Kind::tensor, Attribute::tensor_is_virtual, ValueType::boolean, 1, false},
    {Kind::tensor, Attribute::tensor_is_by_value, ValueType::boolean, 1, false},
    {Kind::variant_pack, Attribute::pack_ids, ValueType::i64, 0, true},
    {Kind::variant_pack, Attribute::pack_pointers, ValueType::pointer, 0, true},
    {Kind::variant_pack, Attribute::pack_workspace, ValueType::pointer, 1, true},
    {Kind::matmul, Attribute::matmul_type, ValueType::data_type, 1, true},
    {Kind::matmul_operation, Attribute::matmul_operation_of, ValueType::descriptor, 1, true, Kind::matmul},
    {Kind::matmul_operation, Attribute::matmul_operation_a, ValueType::descriptor, 1, true},
    {Kind::matmul_operation, Attribute::matmul_operation_b, ValueType::descriptor, 1, true},
    {Kind::matmul_operation, Attribute::matmul_operation_c, ValueType::descriptor, 1, true},
    {Kind::reduction, Attribute::reduction_operator, ValueType::reduction_operator, 1, true},
    {Kind::reduction, Attribute::reduction_type, ValueType::data_type, 1, true},
    {Kind::reduction_operation, Attribute::reduction_operation_of, ValueType::descriptor, 1, true, Kind::reduction},
    {Kind::reduction_operation, Attribute::reduction_operation_x, ValueType::descriptor, 1, true},
    {Kind::reduction_operation, Attribute::reduction_operation_y, ValueType::descriptor, 1, true},
    {Kind::reshape_operation, Attribute::reshape_operation_x, ValueType::descriptor, 1, true},
    {Kind::reshape_operation, Attribute::reshape_operation_y, ValueType::descriptor, 1, true},
};

std::size_t bytes_of(ValueType type) {
  switch (type) {
    case ValueType::boolean:
    case ValueType::character:
      return 1;
    case ValueType::handle:
    case ValueType::i64:
    case ValueType::pointer:
    case ValueType::descriptor:
      return 8;
    default:
      return 4;
  }
}

[[noreturn]] void refuse(cudnn::Status status, const std::string& why) { throw CudnnRefusal(status, why); }

bool is_operation(Kind kind) {
  return kind == Kind::pointwise_operation || kind == Kind::matmul_operation || kind == Kind::reduction_operation ||
         kind == Kind::reshape_operation;
}

void check_tensor(const CudnnObject& object) {
  for (const auto attribute : {Attribute::tensor_extents, Attribute::tensor_strides}) {
    for (const auto value : object.all<std::int64_t>(attribute)) {
      if (value < 1) refuse(cudnn::bad_param, "a tensor's extents and strides are 1 or more");
    }
  }
  const auto alignment = object.one<std::int64_t>(Attribute::tensor_alignment);
  if (alignment < 1 || (alignment & (alignment - 1)) != 0) refuse(cudnn::bad_param, "a tensor's alignment");
}

}  // namespace

CudnnObject* CudnnObjects::make(Kind kind) {
  auto* const made = new CudnnObject(kind);
  live_.insert(made);
  return made;
}

void CudnnObjects::destroy(cudnn::Descriptor descriptor) {
  delete &find(descriptor);
  live_.erase(descriptor);
}

CudnnObject& CudnnObjects::find(cudnn::Descriptor descriptor) const {
  if (!live_.contains(descriptor)) refuse(cudnn::bad_param, "this is no descriptor that lives");
  return *static_cast<CudnnObject*>(descriptor);
}

CudnnObject& CudnnObjects::find(cudnn::Descriptor descriptor, Kind kind) const {
  CudnnObject& object = find(descriptor);
  if (object.kind != kind || !object.final)
    refuse(cudnn::bad_param,
           fmt::format("descriptor of kind {}, {}final, expected kind {}", static_cast<int>(object.kind),
                       object.final ? "" : "not ", static_cast<int>(kind)));
  return object;
}

void CudnnObjects::set(CudnnObject& object, Attribute attribute, ValueType type, std::int64_t count,
                       const void* values) const {
  if (object.final || values == nullptr) refuse(cudnn::bad_param, "a final descriptor is set, or to nothing");
  const auto rule = std::ranges::find_if(
      kRules, [&](const Rule& r) { return r.kind == object.kind && r.attribute == attribute && r.type == type; });
  if (rule == std::end(kRules) || count < 1 || (rule->count != 0 && rule->count != count))
    refuse(cudnn::bad_param, fmt::format("attribute {} of kind {}: type {}, {} values", static_cast<int>(attribute),
                                         static_cast<int>(object.kind), static_cast<int>(type), count));
  const auto* const from = static_cast<const std::byte*>(values);
  CudnnObject::Value value{count, {from, from + static_cast<std::size_t>(count) * bytes_of(type)}};
  object.values[attribute] = std::move(value);
  if (type != ValueType::descriptor) return;
  for (const auto to : object.all<cudnn::Descriptor>(attribute)) {
    if (attribute != Attribute::graph_operations) {
      find(to, rule->refers);
    } else if (!is_operation(find(to).kind) || !find(to).final) {
      refuse(cudnn::bad_param, "no operation");
    }
  }
}

CudnnTensor CudnnObjects::tensor_of(const CudnnObject& operation, Attribute attribute) const {
  const CudnnObject& object = find(operation.one<cudnn::Descriptor>(attribute), Kind::tensor);
  CudnnTensor tensor;
  std::ranges::copy(object.all<std::int64_t>(Attribute::tensor_extents), tensor.extents.begin());
  std::ranges::copy(object.all<std::int64_t>(Attribute::tensor_strides), tensor.strides.begin());
  tensor.id = object.one<std::int64_t>(Attribute::tensor_id);
  tensor.type = object.one<cudnn::Type>(Attribute::tensor_type);
  tensor.alignment = object.one<std::int64_t>(Attribute::tensor_alignment);
  tensor.is_virtual = object.has(Attribute::tensor_is_virtual) && object.one<bool>(Attribute::tensor_is_virtual);
  tensor.is_value = object.has(Attribute::tensor_is_by_value) && object.one<bool>(Attribute::tensor_is_by_value);
  return tensor;
}

CudnnOperation CudnnObjects::operation_of(const CudnnObject& object, CudnnFakeGraph& graph) const {
  const auto tensor = [&](Attribute attribute) -> std::int64_t {
    if (!object.has(attribute)) return 0;
    const CudnnTensor found = tensor_of(object, attribute);
    if (!(graph.tensors.try_emplace(found.id, found).first->second == found))
      refuse(cudnn::bad_param, fmt::format("two tensors have the id {}", found.id));
    return found.id;
  };
  CudnnOperation made{.kind = object.kind};
  switch (object.kind) {
    case Kind::matmul_operation:
      made.x = tensor(Attribute::matmul_operation_a);
      made.b = tensor(Attribute::matmul_operation_b);
      made.y = tensor(Attribute::matmul_operation_c);
      break;
    case Kind::pointwise_operation: {
      const auto& setting = find(object.one<cudnn::Descriptor>(Attribute::pointwise_operation_of), Kind::pointwise);
      made.mode = setting.one<cudnn::Pointwise>(Attribute::pointwise_mode);
      if (setting.has(Attribute::pointwise_axis)) made.axis = setting.one<std::int64_t>(Attribute::pointwise_axis);
      made.x = tensor(Attribute::pointwise_operation_x);
      made.b = tensor(Attribute::pointwise_operation_b);
      made.t = tensor(Attribute::pointwise_operation_t);
      made.y = tensor(Attribute::pointwise_operation_y);
      break;
    }
    case Kind::reduction_operation: {
      const auto& setting = find(object.one<cudnn::Descriptor>(Attribute::reduction_operation_of), Kind::reduction);
      made.reduce = setting.one<cudnn::Reduce>(Attribute::reduction_operator);
      made.x = tensor(Attribute::reduction_operation_x);
      made.y = tensor(Attribute::reduction_operation_y);
      break;
    }
    default:
      made.x = tensor(Attribute::reshape_operation_x);
      made.y = tensor(Attribute::reshape_operation_y);
  }
  return made;
}

void CudnnObjects::finalize(CudnnObject& object) const {
  if (object.final) refuse(cudnn::bad_param, "finalized twice");
  for (const Rule& rule : kRules) {
    if (rule.kind == object.kind && rule.needed && !object.has(rule.attribute))
      refuse(cudnn::bad_param, fmt::format("attribute {} is missing", static_cast<int>(rule.attribute)));
  }
  if (object.kind == Kind::tensor) check_tensor(object);
  if (object.kind == Kind::graph) {
    auto graph = std::make_shared<CudnnFakeGraph>();
    for (const auto operation : object.all<cudnn::Descriptor>(Attribute::graph_operations))
      graph->operations.push_back(operation_of(find(operation), *graph));
    if (const auto what = graph->problem(); !what.empty()) refuse(cudnn::not_supported, what);
    object.graph = std::move(graph);
  }
  if (object.kind == Kind::heuristics)
    object.graph = find(object.one<cudnn::Descriptor>(Attribute::heuristics_graph), Kind::graph).graph;
  if (object.kind == Kind::plan)
    object.graph = find(object.one<cudnn::Descriptor>(Attribute::plan_config), Kind::engine_config).graph;
  object.final = true;
}

}  // namespace dtrun::runtime::ops::gpu
