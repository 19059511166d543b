#include "worker_runtime/device/cudnn_graph.hpp"

#include <fmt/format.h>

namespace dtrun::runtime {
namespace {

using cudnn::Attribute;
using cudnn::Kind;
using cudnn::ValueType;

std::string text_of(const CudnnApi& api, cudnn::Status status, const std::string& what) {
  std::array<char, 1024> said{};
  api.get_last_error_string(said.data(), said.size() - 1);
  std::string reason(said.data());
  while (!reason.empty() && (reason.back() == '\n' || reason.back() == ' ')) reason.pop_back();
  const std::string text = fmt::format("{} failed: {}", what, api.get_error_string(status));
  return reason.empty() ? text : fmt::format("{} ({})", text, reason);
}

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::pointwise:
    case Kind::pointwise_operation:
      return "an elementwise operation";
    case Kind::engine:
      return "an engine";
    case Kind::engine_config:
      return "an engine's configuration";
    case Kind::heuristics:
      return "the choice of an engine";
    case Kind::plan:
      return "a plan";
    case Kind::graph:
      return "a graph";
    case Kind::variant_pack:
      return "the list of tensors";
    case Kind::tensor:
      return "a tensor";
    case Kind::matmul:
    case Kind::matmul_operation:
      return "a product";
    case Kind::reduction:
    case Kind::reduction_operation:
      return "a reduction";
    case Kind::reshape_operation:
      return "a reshape";
    case Kind::device_properties:
      return "the device's properties";
  }
  return "a descriptor";
}

}  // namespace

CudnnError::CudnnError(const CudnnApi& api, cudnn::Status status, const std::string& what)
    : DeviceError("device", text_of(api, status, what)) {}

CudnnDescriptor::CudnnDescriptor(const CudnnApi& api, Kind kind) : api_(&api), kind_(kind) {
  if (const auto status = api.create_descriptor(kind, &handle_); status != cudnn::ok)
    throw CudnnError(api, status, fmt::format("cudnnBackendCreateDescriptor of {}", name_of(kind)));
}

CudnnDescriptor::~CudnnDescriptor() {
  if (handle_ != nullptr) api_->destroy_descriptor(handle_);
}

void CudnnDescriptor::set(Attribute attribute, ValueType type, std::int64_t count, const void* values) {
  if (const auto status = api_->set_attribute(handle_, attribute, type, count, values); status != cudnn::ok)
    throw CudnnError(*api_, status,
                     fmt::format("cudnnBackendSetAttribute of {} ({})", name_of(kind_), static_cast<int>(attribute)));
}

void CudnnDescriptor::finalize() {
  if (const auto status = api_->finalize(handle_); status != cudnn::ok)
    throw CudnnError(*api_, status, fmt::format("cudnnBackendFinalize of {}", name_of(kind_)));
}

std::int64_t CudnnDescriptor::get(Attribute attribute, ValueType type, std::int64_t wanted, void* values) const {
  std::int64_t count = 0;
  if (const auto status = api_->get_attribute(handle_, attribute, type, wanted, &count, values); status != cudnn::ok)
    throw CudnnError(*api_, status,
                     fmt::format("cudnnBackendGetAttribute of {} ({})", name_of(kind_), static_cast<int>(attribute)));
  return count;
}

std::int64_t CudnnGraph::add(const Tensor& tensor) {
  const auto id = static_cast<std::int64_t>(list_.size()) + 1;
  CudnnDescriptor made(api_, Kind::tensor);
  const auto rank = static_cast<std::int64_t>(tensor.extents.size());
  made.set(Attribute::tensor_type, ValueType::data_type, tensor.type);
  made.set(Attribute::tensor_extents, ValueType::i64, rank, tensor.extents.data());
  made.set(Attribute::tensor_strides, ValueType::i64, rank, tensor.strides.data());
  made.set(Attribute::tensor_id, ValueType::i64, id);
  made.set(Attribute::tensor_alignment, ValueType::i64, tensor.alignment);
  const bool yes = true;
  if (tensor.place == Tensor::Place::nowhere) made.set(Attribute::tensor_is_virtual, ValueType::boolean, yes);
  if (tensor.place == Tensor::Place::value) made.set(Attribute::tensor_is_by_value, ValueType::boolean, yes);
  made.finalize();
  tensors_.push_back(std::move(made));
  list_.push_back(tensor);
  list_.back().id = id;
  return id;
}

std::int64_t CudnnGraph::in_memory(const CudnnExtents& extents, const CudnnExtents& strides, cudnn::Type type,
                                   std::int64_t alignment) {
  return add({0, extents, strides, type, alignment, Tensor::Place::memory});
}

std::int64_t CudnnGraph::between(const CudnnExtents& extents, const CudnnExtents& strides, cudnn::Type type) {
  return add({0, extents, strides, type, 16, Tensor::Place::nowhere});
}

std::int64_t CudnnGraph::number() {
  return add({0, {1, 1, 1, 1}, {1, 1, 1, 1}, cudnn::Type::f32, 4, Tensor::Place::value});
}

CudnnDescriptor& CudnnGraph::operation(Kind kind) { return operations_.emplace_back(api_, kind); }

void CudnnGraph::matmul(std::int64_t a, std::int64_t b, std::int64_t c) {
  auto& setting = settings_.emplace_back(api_, Kind::matmul);
  setting.set(Attribute::matmul_type, ValueType::data_type, cudnn::Type::f32);
  setting.finalize();
  auto& made = operation(Kind::matmul_operation);
  made.refer(Attribute::matmul_operation_of, setting);
  made.refer(Attribute::matmul_operation_a, at(a));
  made.refer(Attribute::matmul_operation_b, at(b));
  made.refer(Attribute::matmul_operation_c, at(c));
  made.finalize();
}

void CudnnGraph::pointwise(cudnn::Pointwise mode, std::int64_t x, std::int64_t b, std::int64_t y, std::int64_t t,
                           std::int64_t axis) {
  auto& setting = settings_.emplace_back(api_, Kind::pointwise);
  setting.set(Attribute::pointwise_mode, ValueType::pointwise_mode, mode);
  const auto type = mode == cudnn::Pointwise::greater_or_equal ? cudnn::Type::boolean : cudnn::Type::f32;
  setting.set(Attribute::pointwise_type, ValueType::data_type, type);
  if (axis >= 0) setting.set(Attribute::pointwise_axis, ValueType::i64, axis);
  setting.finalize();
  auto& made = operation(Kind::pointwise_operation);
  made.refer(Attribute::pointwise_operation_of, setting);
  made.refer(Attribute::pointwise_operation_x, at(x));
  if (b != 0) made.refer(Attribute::pointwise_operation_b, at(b));
  made.refer(Attribute::pointwise_operation_y, at(y));
  if (t != 0) made.refer(Attribute::pointwise_operation_t, at(t));
  made.finalize();
}

void CudnnGraph::reduce(cudnn::Reduce mode, std::int64_t x, std::int64_t y) {
  auto& setting = settings_.emplace_back(api_, Kind::reduction);
  setting.set(Attribute::reduction_operator, ValueType::reduction_operator, mode);
  setting.set(Attribute::reduction_type, ValueType::data_type, cudnn::Type::f32);
  setting.finalize();
  auto& made = operation(Kind::reduction_operation);
  made.refer(Attribute::reduction_operation_of, setting);
  made.refer(Attribute::reduction_operation_x, at(x));
  made.refer(Attribute::reduction_operation_y, at(y));
  made.finalize();
}

void CudnnGraph::reshape(std::int64_t x, std::int64_t y) {
  auto& made = operation(Kind::reshape_operation);
  made.refer(Attribute::reshape_operation_x, at(x));
  made.refer(Attribute::reshape_operation_y, at(y));
  made.finalize();
}

CudnnDescriptor CudnnGraph::finish(cudnn::Handle handle) {
  CudnnDescriptor graph(api_, Kind::graph);
  std::vector<cudnn::Descriptor> operations;
  for (const auto& operation : operations_) operations.push_back(operation.get());
  graph.set(Attribute::graph_operations, ValueType::descriptor, static_cast<std::int64_t>(operations.size()),
            operations.data());
  if (handle != nullptr) graph.set(Attribute::graph_handle, ValueType::handle, handle);
  graph.finalize();
  return graph;
}

}  // namespace dtrun::runtime
