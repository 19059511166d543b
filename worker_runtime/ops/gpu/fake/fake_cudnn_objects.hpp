// What the fake cuDNN makes: descriptors as lists of attributes. All calls hold one lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "worker_runtime/device/cudnn_api.hpp"
#include "worker_runtime/ops/gpu/fake/fake_cudnn_graph.hpp"

namespace dtrun::runtime::ops::gpu {

// Ends a call: the status that it returns, and the text for cudnnGetLastErrorString.
struct CudnnRefusal : std::runtime_error {
  CudnnRefusal(cudnn::Status what, const std::string& why) : std::runtime_error(why), status(what) {}
  cudnn::Status status;
};

struct CudnnObject {
  struct Value {
    std::int64_t count = 0;
    std::vector<std::byte> bytes;
  };
  explicit CudnnObject(cudnn::Kind of) : kind(of) {}
  cudnn::Kind kind;
  bool final = false;
  std::map<cudnn::Attribute, Value> values;
  std::shared_ptr<const CudnnFakeGraph> graph;  // of graphs, and of what was made for one

  bool has(cudnn::Attribute attribute) const { return values.contains(attribute); }
  template <class T>
  std::vector<T> all(cudnn::Attribute attribute) const {
    const Value& value = values.at(attribute);
    std::vector<T> list(value.bytes.size() / sizeof(T));
    std::memcpy(list.data(), value.bytes.data(), list.size() * sizeof(T));
    return list;
  }
  template <class T>
  T one(cudnn::Attribute attribute) const {
    T first{};
    std::memcpy(&first, values.at(attribute).bytes.data(), sizeof first);
    return first;
  }
};

// The descriptors that live. `find` refuses what is none, or was destroyed.
class CudnnObjects {
 public:
  CudnnObject* make(cudnn::Kind kind);
  void destroy(cudnn::Descriptor descriptor);
  CudnnObject& find(cudnn::Descriptor descriptor) const;
  CudnnObject& find(cudnn::Descriptor descriptor, cudnn::Kind kind) const;

  void set(CudnnObject& object, cudnn::Attribute attribute, cudnn::ValueType type, std::int64_t count,
           const void* values) const;
  void finalize(CudnnObject& object) const;
  std::size_t size() const { return live_.size(); }

 private:
  CudnnTensor tensor_of(const CudnnObject& operation, cudnn::Attribute attribute) const;
  CudnnOperation operation_of(const CudnnObject& object, CudnnFakeGraph& graph) const;
  std::set<const void*> live_;
};

}  // namespace dtrun::runtime::ops::gpu
