#include "worker_runtime/comm/single_group.hpp"

#include <fmt/format.h>

#include <array>
#include <optional>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/device/device.hpp"

namespace dtrun::runtime {

namespace {

class SingleGroup final : public ProcessGroup {
 public:
  explicit SingleGroup(const GroupOptions& group_options) : ProcessGroup(0, 1, group_options) {}
  ~SingleGroup() override { stop_thread(); }

  std::string_view backend() const noexcept override { return "none"; }

  Tensor allocate(const Shape& shape, DType dtype, MemoryTag tag) override {
    auto& arena = arenas_[static_cast<std::size_t>(tag)];
    if (!arena) arena.emplace(tag, options().account != nullptr ? *options().account : unaccounted(), options().device);
    return Tensor::empty(shape, dtype, *arena);
  }

  std::unique_ptr<ProcessGroup> split(std::span<const int> ranks, const std::string& name) override {
    if (ranks.empty()) return nullptr;
    if (ranks.size() != 1 || ranks[0] != 0)
      throw ShapeError("comm", fmt::format("split of group \"{}\": it has rank 0 only", this->name()));
    GroupOptions inner = options();
    inner.name = name;
    return create_single_group(inner);
  }

 protected:
  void run(const Collective& call, const CommAction&) override {
    if (call.input == nullptr || call.output == nullptr || call.input->begins_at(*call.output)) return;
    call.output->view(call.input->shape()).copy_from(*call.input);
  }
  bool takes_device_tensors() const noexcept override { return true; }
  Work start(const Collective&, const CommAction&) override {
    return Work();
  }  // never reached: there is no peer to name

 private:
  // Blocks may outlive the group, and the account must outlive the blocks.
  static MemoryAccount& unaccounted() {
    static MemoryAccount account;
    return account;
  }
  std::array<std::optional<Arena>, kMemoryTags> arenas_;
};

}  // namespace

std::unique_ptr<ProcessGroup> create_single_group(const GroupOptions& options) {
  return std::make_unique<SingleGroup>(options);
}

}  // namespace dtrun::runtime
