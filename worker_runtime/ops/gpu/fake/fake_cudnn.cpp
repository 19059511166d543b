#include "worker_runtime/ops/gpu/fake/fake_cudnn.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "worker_runtime/device/fake/fake_cuda.hpp"
#include "worker_runtime/ops/gpu/fake/fake_cudnn_objects.hpp"

namespace dtrun::runtime::ops::gpu {
namespace {

using cudnn::Attribute;
using cudnn::Kind;
using cudnn::Status;
using cudnn::ValueType;

struct Handle {
  void* stream = nullptr;
};

struct State {
  std::mutex mutex;
  CudnnObjects objects;
  std::set<const void*> handles;
  int runs = 0;
};

State& state() {
  static State made;
  return made;
}

thread_local std::string last_error;

// Runs `body` under the lock; what it throws is what the call returns.
template <class Body>
Status call(Body body) {
  const std::lock_guard lock(state().mutex);
  try {
    body(state());
    return cudnn::ok;
  } catch (const CudnnRefusal& refusal) {
    last_error = refusal.what();
    return refusal.status;
  }
}

Handle& handle_of(State& s, cudnn::Handle handle) {
  if (!s.handles.contains(handle)) throw CudnnRefusal(cudnn::not_initialized, "this is no handle that lives");
  return *static_cast<Handle*>(handle);
}

// Fills descriptors that the caller has made.
void fill(State& s, const CudnnObject& from, Kind kind, std::int64_t wanted, std::int64_t* count, void* values) {
  const std::int64_t there = from.graph->has_engine() ? 1 : 0;
  *count = there;
  for (std::int64_t i = 0; i < std::min(wanted, there); ++i) {
    CudnnObject& to = s.objects.find(static_cast<cudnn::Descriptor*>(values)[i]);
    if (to.kind != kind || to.final) throw CudnnRefusal(cudnn::bad_param, "a result needs a new descriptor");
    to.graph = from.graph;
    to.final = true;
  }
}

Status get(cudnn::Descriptor descriptor, Attribute attribute, ValueType type, std::int64_t wanted, std::int64_t* count,
           void* values) {
  return call([&](State& s) {
    const CudnnObject& object = s.objects.find(descriptor);
    if (!object.final) throw CudnnRefusal(cudnn::bad_param, "not final");
    const bool descriptors = type == ValueType::descriptor;
    if (object.kind == Kind::heuristics && attribute == Attribute::heuristics_results && descriptors)
      return fill(s, object, Kind::engine_config, wanted, count, values);
    if (object.kind == Kind::engine_config && attribute == Attribute::config_engine && descriptors)
      return fill(s, object, Kind::engine, wanted, count, values);
    if (object.kind == Kind::engine && attribute == Attribute::engine_numerical_notes &&
        type == ValueType::numerical_note && wanted >= 1) {
      *count = 1;
      *static_cast<cudnn::Note*>(values) = cudnn::Note::tensor_core;
      return;
    }
    if (object.kind == Kind::plan && attribute == Attribute::plan_workspace_bytes && type == ValueType::i64 &&
        wanted == 1) {
      *count = 1;
      *static_cast<std::int64_t*>(values) = static_cast<std::int64_t>(object.graph->workspace_bytes());
      return;
    }
    throw CudnnRefusal(cudnn::bad_param, fmt::format("attribute {}", static_cast<int>(attribute)));
  });
}

bool aligned(const void* data, std::int64_t alignment) {
  return reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(alignment) == 0;
}

// A graph with its memory, as an operation of the stream. Numbers are read now, as the library does.
fake::FakeOperation operation_of(const std::shared_ptr<const CudnnFakeGraph>& graph, const CudnnObject& pack) {
  const auto ids = pack.all<std::int64_t>(Attribute::pack_ids);
  const auto pointers = pack.all<std::byte*>(Attribute::pack_pointers);
  auto* const workspace = pack.one<std::byte*>(Attribute::pack_workspace);
  if (ids.size() != pointers.size() || workspace == nullptr || !aligned(workspace, 256))
    throw CudnnRefusal(cudnn::bad_param, "ids and pointers, or the workspace");
  std::map<std::int64_t, std::byte*> memory;
  auto numbers = std::make_shared<std::map<std::int64_t, float>>();
  std::vector<cuda::Access> accesses{{workspace, graph->workspace_bytes(), true}};
  for (const auto& [id, tensor] : graph->tensors) {
    if (tensor.is_virtual) continue;
    const auto place = static_cast<std::size_t>(std::ranges::find(ids, id) - ids.begin());
    if (place == ids.size() || pointers[place] == nullptr || !aligned(pointers[place], tensor.alignment))
      throw CudnnRefusal(cudnn::bad_param, fmt::format("tensor {} has no memory, or it is not aligned", id));
    if (tensor.is_value) {
      (*numbers)[id] = *reinterpret_cast<const float*>(pointers[place]);
      memory[id] = reinterpret_cast<std::byte*>(&(*numbers)[id]);
    } else {
      memory[id] = pointers[place];
      accesses.push_back(
          {pointers[place], static_cast<std::size_t>(tensor.span()) * tensor.element_bytes(), graph->writes(id)});
    }
  }
  return {"cudnnBackendExecute", std::move(accesses), [graph, memory = std::move(memory), numbers] {
            graph->run(memory);
            return fake::Poll::done;
          }};
}

Status execute(cudnn::Handle handle, cudnn::Descriptor plan, cudnn::Descriptor pack) {
  return call([&](State& s) {
    const auto& from = s.objects.find(plan, Kind::plan);
    if (from.one<cudnn::Handle>(Attribute::plan_handle) != handle)
      throw CudnnRefusal(cudnn::bad_param, "the plan is of another handle");
    auto operation = operation_of(from.graph, s.objects.find(pack, Kind::variant_pack));
    if (fake::enqueue(handle_of(s, handle).stream, std::move(operation)) != cuda::kSuccess)
      throw CudnnRefusal(cudnn::execution_failed, "the stream takes no more");
    ++s.runs;
  });
}

const char* error_string(Status status) {
  switch (status) {
    case cudnn::ok:
      return "CUDNN_STATUS_SUCCESS";
    case cudnn::not_initialized:
      return "CUDNN_STATUS_NOT_INITIALIZED";
    case cudnn::bad_param:
      return "CUDNN_STATUS_BAD_PARAM";
    case cudnn::not_supported:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    case cudnn::execution_failed:
      return "CUDNN_STATUS_EXECUTION_FAILED";
    default:
      return "CUDNN_STATUS_INTERNAL_ERROR";
  }
}

CudnnApi make_api() {
  CudnnApi api{};
  api.get_version = [] { return std::size_t{91900}; };
  api.get_error_string = error_string;
  api.get_last_error_string = [](char* text, std::size_t bytes) {
    text[last_error.copy(text, bytes - 1)] = '\0';
    last_error.clear();
  };
  api.create = [](cudnn::Handle* to) {
    return call([&](State& s) {
      *to = new Handle;
      s.handles.insert(*to);
    });
  };
  api.destroy = [](cudnn::Handle handle) {
    return call([&](State& s) {
      delete &handle_of(s, handle);
      s.handles.erase(handle);
    });
  };
  api.set_stream = [](cudnn::Handle handle, void* stream) {
    return call([&](State& s) { handle_of(s, handle).stream = stream; });
  };
  api.create_descriptor = [](Kind kind, cudnn::Descriptor* to) {
    return call([&](State& s) { *to = s.objects.make(kind); });
  };
  api.destroy_descriptor = [](cudnn::Descriptor descriptor) {
    return call([&](State& s) { s.objects.destroy(descriptor); });
  };
  api.finalize = [](cudnn::Descriptor descriptor) {
    return call([&](State& s) { s.objects.finalize(s.objects.find(descriptor)); });
  };
  api.set_attribute = [](cudnn::Descriptor descriptor, Attribute attribute, ValueType type, std::int64_t count,
                         const void* values) {
    return call([&](State& s) { s.objects.set(s.objects.find(descriptor), attribute, type, count, values); });
  };
  api.get_attribute = get;
  api.execute = execute;
  return api;
}

}  // namespace

const CudnnApi& fake_cudnn() {
  static const CudnnApi api = make_api();
  return api;
}

int fake_cudnn_objects() {
  const std::lock_guard lock(state().mutex);
  return static_cast<int>(state().objects.size() + state().handles.size());
}

int fake_cudnn_runs() {
  const std::lock_guard lock(state().mutex);
  return state().runs;
}

}  // namespace dtrun::runtime::ops::gpu
