// cuDNN on one device: its handle, and plans (compiled graphs) by shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "worker_runtime/device/cudnn_graph.hpp"

namespace dtrun::runtime {

class Device;

// A graph with the engine that will run it. Immutable; destroyed when nothing of it runs any more.
class CudnnPlan {
 public:
  // For the device of `handle`, or without one for the device that `properties` describe. Takes the first engine that
  // the library proposes, whose results repeat bit by bit and which is content with `most_workspace` bytes. Null, with
  // the reason in `why`, when there is none. Throws CudnnError when the library cannot even say that.
  static std::unique_ptr<CudnnPlan> make(CudnnGraph graph, cudnn::Handle handle, const CudnnDescriptor* properties,
                                         std::size_t most_workspace, std::string& why);

  std::size_t workspace_bytes() const noexcept { return workspace_bytes_; }
  const CudnnGraph& graph() const noexcept { return graph_; }
  cudnn::Descriptor get() const noexcept { return plan_->get(); }

 private:
  CudnnPlan(CudnnGraph graph, cudnn::Handle handle) : graph_(std::move(graph)), whole_(graph_.finish(handle)) {}
  bool take(const CudnnDescriptor& configuration, cudnn::Handle handle, const CudnnDescriptor* properties,
            std::size_t most_workspace, std::string& why);
  CudnnGraph graph_;
  CudnnDescriptor whole_;
  std::vector<CudnnDescriptor> configurations_;
  std::optional<CudnnDescriptor> plan_;
  std::size_t workspace_bytes_ = 0;
};

// The memory of each tensor of a graph that has some, and of each number.
struct CudnnArgument {
  std::int64_t id;
  const void* data;  // of the device; for a number, of the host, read during the call
};

// Owned by its Device, made by the first use. Any thread. Remembers the plans of the last kMostPlans shapes, and which
// shapes have none. Fails with DeviceError.
class Cudnn {
 public:
  static constexpr std::size_t kMostPlans = 64;
  using Key = std::vector<std::int64_t>;

  Cudnn(Device& device, const CudnnApi& api);
  Cudnn(const Cudnn&) = delete;
  Cudnn& operator=(const Cudnn&) = delete;
  ~Cudnn();

  const CudnnApi& api() const noexcept { return api_; }
  std::size_t version() const noexcept { return version_; }

  // The plan for what `key` says, made by the first call. Null when the library has none, and then a warning says why,
  // once for each key.
  std::shared_ptr<const CudnnPlan> plan(const Key& key, const std::function<CudnnGraph()>& build,
                                        std::size_t most_workspace);
  // On the current stream. `workspace`: of the plan's size, aligned to 256 bytes.
  void run(const CudnnPlan& plan, std::span<const CudnnArgument> arguments, std::byte* workspace);

  // How many plans were asked of the library.
  std::size_t made() const;

 private:
  struct Entry {
    Key key;
    std::shared_ptr<const CudnnPlan> plan;
  };
  std::shared_ptr<const CudnnPlan> make(const std::function<CudnnGraph()>& build, std::size_t most_workspace);
  void forget_oldest();
  Device& device_;
  const CudnnApi& api_;
  std::size_t version_;
  cudnn::Handle handle_ = nullptr;
  mutable std::mutex mutex_;  // of what follows, and of the handle
  std::list<Entry> entries_;  // the last one used is first
  std::size_t made_ = 0;
};

// "9.19" of 91900.
std::string cudnn_version_text(std::size_t version);

}  // namespace dtrun::runtime
