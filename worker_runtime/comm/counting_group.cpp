#include "worker_runtime/comm/counting_group.hpp"

#include <fmt/format.h>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/comm/split.hpp"

namespace dtrun::runtime {

namespace {

class CountingGroup final : public ProcessGroup {
 public:
  CountingGroup(int rank, int size, const GroupOptions& group_options) : ProcessGroup(rank, size, group_options) {}

  std::string_view backend() const noexcept override { return "counting"; }

  Tensor allocate(const Shape& shape, DType dtype, MemoryTag tag) override {
    Arena arena(tag, *options().account);
    return Tensor::empty(shape, dtype, arena);
  }

  std::unique_ptr<ProcessGroup> split(std::span<const int> ranks, const std::string& name) override {
    const int place = place_in_split(ranks, rank(), size(), name);
    if (place < 0) return nullptr;
    GroupOptions inner = options();
    inner.name = name;
    return std::make_unique<CountingGroup>(place, static_cast<int>(ranks.size()), inner);
  }

 protected:
  void run(const Collective&, const CommAction&) override {}
  Work start(const Collective&, const CommAction&) override { return Work(); }
};

}  // namespace

std::unique_ptr<ProcessGroup> create_counting_group(int rank, int size, const GroupOptions& options) {
  if (size < 1 || rank < 0 || rank >= size)
    throw UsageError("comm", fmt::format("rank {} of {}, expected 0 <= rank < size", rank, size));
  DTRUN_ASSERT(options.account != nullptr && options.account->is_abstract());
  GroupOptions inline_options = options;
  inline_options.comm_thread = false;  // there is nothing to wait for
  return std::make_unique<CountingGroup>(rank, size, inline_options);
}

}  // namespace dtrun::runtime
