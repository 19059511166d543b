#include "worker_runtime/device/cudnn.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "rendezvous/base/log.hpp"
#include "worker_runtime/device/device.hpp"

namespace dtrun::runtime {
namespace {

using cudnn::Attribute;
using cudnn::Kind;
using cudnn::ValueType;

constexpr std::int64_t kMostConfigurations = 16;

// What the library proposes for a graph, best first.
std::vector<CudnnDescriptor> propose(const CudnnApi& api, const CudnnDescriptor& graph, cudnn::Heuristics mode,
                                     const CudnnDescriptor* properties) {
  CudnnDescriptor heuristics(api, Kind::heuristics);
  heuristics.refer(Attribute::heuristics_graph, graph);
  heuristics.set(Attribute::heuristics_mode, ValueType::heuristics_mode, mode);
  if (properties != nullptr) heuristics.refer(Attribute::heuristics_device, *properties);
  heuristics.finalize();
  const auto there = heuristics.get(Attribute::heuristics_results, ValueType::descriptor, 0, nullptr);
  std::vector<CudnnDescriptor> found;
  std::vector<cudnn::Descriptor> handles;
  for (std::int64_t i = 0; i < std::min(there, kMostConfigurations); ++i)
    handles.push_back(found.emplace_back(api, Kind::engine_config).get());
  if (handles.empty()) return found;
  const auto given = heuristics.get(Attribute::heuristics_results, ValueType::descriptor,
                                    static_cast<std::int64_t>(handles.size()), handles.data());
  while (static_cast<std::int64_t>(found.size()) > given) found.pop_back();
  return found;
}

bool repeats(const CudnnApi& api, const CudnnDescriptor& configuration) {
  const CudnnDescriptor engine(api, Kind::engine);
  cudnn::Descriptor handle = engine.get();
  configuration.get(Attribute::config_engine, ValueType::descriptor, 1, &handle);
  std::array<cudnn::Note, cudnn::kMostNotes> notes{};
  const auto count =
      engine.get(Attribute::engine_numerical_notes, ValueType::numerical_note, cudnn::kMostNotes, notes.data());
  const auto end = notes.begin() + std::min(count, cudnn::kMostNotes);
  return std::find(notes.begin(), end, cudnn::Note::nondeterministic) == end;
}

}  // namespace

bool CudnnPlan::take(const CudnnDescriptor& configuration, cudnn::Handle handle, const CudnnDescriptor* properties,
                     std::size_t most_workspace, std::string& why) {
  const CudnnApi& api = graph_.api();
  if (!repeats(api, configuration)) {
    why = "only engines whose bits do not repeat take this graph";
    return false;
  }
  CudnnDescriptor plan(api, Kind::plan);
  if (handle != nullptr) plan.set(Attribute::plan_handle, ValueType::handle, handle);
  plan.refer(Attribute::plan_config, configuration);
  if (properties != nullptr) plan.refer(Attribute::plan_device, *properties);
  plan.finalize();
  std::int64_t bytes = 0;
  plan.get(Attribute::plan_workspace_bytes, ValueType::i64, 1, &bytes);
  if (bytes < 0 || static_cast<std::size_t>(bytes) > most_workspace) {
    why = fmt::format("it wants {} bytes of workspace, expected at most {}", bytes, most_workspace);
    return false;
  }
  plan_.emplace(std::move(plan));
  workspace_bytes_ = static_cast<std::size_t>(bytes);
  return true;
}

std::unique_ptr<CudnnPlan> CudnnPlan::make(CudnnGraph graph, cudnn::Handle handle, const CudnnDescriptor* properties,
                                           std::size_t most_workspace, std::string& why) {
  std::unique_ptr<CudnnPlan> plan(new CudnnPlan(std::move(graph), handle));
  why = "no engine takes this graph";
  for (const auto mode : {cudnn::Heuristics::best, cudnn::Heuristics::fallback}) {
    for (auto& configuration : propose(plan->graph_.api(), plan->whole_, mode, properties)) {
      try {
        if (!plan->take(configuration, handle, properties, most_workspace, why)) continue;
        plan->configurations_.push_back(std::move(configuration));
        return plan;
      } catch (const CudnnError& error) {  // the next engine may do
        why = error.what();
      }
    }
  }
  return nullptr;
}

Cudnn::Cudnn(Device& device, const CudnnApi& api) : device_(device), api_(api), version_(api.get_version()) {
  device_.activate();
  if (const auto status = api_.create(&handle_); status != cudnn::ok) throw CudnnError(api_, status, "cudnnCreate");
}

Cudnn::~Cudnn() {
  if (device_.lost()) {  // what runs there may never end, and giving it back would wait for it
    for (Entry& entry : entries_)
      new std::shared_ptr<const CudnnPlan>(std::move(entry.plan));  // NOLINT: kept on purpose
    return;
  }
  device_.cuda().device_synchronize();
  entries_.clear();
  api_.destroy(handle_);
}

std::size_t Cudnn::made() const {
  const std::lock_guard lock(mutex_);
  return made_;
}

std::shared_ptr<const CudnnPlan> Cudnn::make(const std::function<CudnnGraph()>& build, std::size_t most_workspace) {
  ++made_;
  std::string why;
  std::shared_ptr<const CudnnPlan> plan;
  try {
    plan = CudnnPlan::make(build(), handle_, nullptr, most_workspace, why);
  } catch (const CudnnError& error) {
    why = error.what();
  }
  if (plan == nullptr)
    log::warning("device", "cuDNN {} has no plan, own kernels run instead: {}", cudnn_version_text(version_), why);
  return plan;
}

// What may still run of it ends first.
void Cudnn::forget_oldest() {
  if (entries_.back().plan != nullptr) device_.check(device_.cuda().device_synchronize(), "cudaDeviceSynchronize");
  entries_.pop_back();
}

std::shared_ptr<const CudnnPlan> Cudnn::plan(const Key& key, const std::function<CudnnGraph()>& build,
                                             std::size_t most_workspace) {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(entries_, key, &Entry::key);
  if (found != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, found);
    return found->plan;
  }
  if (entries_.size() >= kMostPlans) forget_oldest();
  device_.activate();
  entries_.push_front({key, make(build, most_workspace)});
  return entries_.front().plan;
}

void Cudnn::run(const CudnnPlan& plan, std::span<const CudnnArgument> arguments, std::byte* workspace) {
  std::vector<std::int64_t> ids;
  std::vector<const void*> pointers;
  for (const CudnnArgument& argument : arguments) {
    ids.push_back(argument.id);
    pointers.push_back(argument.data);
  }
  const auto count = static_cast<std::int64_t>(ids.size());
  device_.activate();
  const std::lock_guard lock(mutex_);
  CudnnDescriptor pack(api_, Kind::variant_pack);
  pack.set(Attribute::pack_ids, ValueType::i64, count, ids.data());
  pack.set(Attribute::pack_pointers, ValueType::pointer, count, pointers.data());
  pack.set(Attribute::pack_workspace, ValueType::pointer, workspace);
  pack.finalize();
  if (const auto status = api_.set_stream(handle_, device_.current().handle()); status != cudnn::ok)
    throw CudnnError(api_, status, fmt::format("device {}: cudnnSetStream", device_.index()));
  if (const auto status = api_.execute(handle_, plan.get(), pack.get()); status != cudnn::ok)
    throw CudnnError(api_, status, fmt::format("device {}: cudnnBackendExecute", device_.index()));
}

Cudnn* Device::cudnn() {
  const std::lock_guard lock(cudnn_mutex_);
  if (cudnn_ || apis_.cudnn == nullptr) return cudnn_.get();
  try {
    cudnn_ = std::make_unique<Cudnn>(*this, *apis_.cudnn);
  } catch (const CudnnError& error) {
    log::warning("device", "cuDNN is not used: {}", error.what());
    apis_.cudnn = nullptr;
    apis_.without_cudnn = error.what();
  }
  return cudnn_.get();
}

std::string cudnn_version_text(std::size_t version) {
  return fmt::format("{}.{}", version / 10000, version / 100 % 100);
}

}  // namespace dtrun::runtime
