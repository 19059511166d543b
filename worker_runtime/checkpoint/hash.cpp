#include "worker_runtime/checkpoint/hash.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <memory>

namespace dtrun::runtime {

std::uint64_t hash_tensors(std::vector<NamedTensor> tensors) {
  std::ranges::sort(tensors, {}, &NamedTensor::name);
  const std::unique_ptr<XXH64_state_t, decltype(&XXH64_freeState)> state(XXH64_createState(), &XXH64_freeState);
  if (!state) throw std::bad_alloc();
  XXH64_reset(state.get(), 0);
  for (const NamedTensor& item : tensors) {
    XXH64_update(state.get(), item.name.c_str(), item.name.size() + 1);
    if (item.tensor.bytes() != 0) XXH64_update(state.get(), item.tensor.raw(), item.tensor.bytes());
  }
  return XXH64_digest(state.get());
}

std::string hash_text(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

}  // namespace dtrun::runtime
