#include "worker_runtime/checkpoint/hash.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <memory>

namespace dtrun::runtime {

struct TensorHash::State {
  std::unique_ptr<XXH64_state_t, decltype(&XXH64_freeState)> xxh{XXH64_createState(), &XXH64_freeState};
};

TensorHash::TensorHash() : state_(std::make_unique<State>()) {
  if (!state_->xxh) throw std::bad_alloc();
  XXH64_reset(state_->xxh.get(), 0);
}

TensorHash::~TensorHash() = default;

void TensorHash::add(const std::string& name, const Tensor& tensor) {
  XXH64_update(state_->xxh.get(), name.c_str(), name.size() + 1);
  if (tensor.bytes() == 0) return;
  const Tensor here = tensor.to_host();
  XXH64_update(state_->xxh.get(), here.raw(), here.bytes());
}

std::uint64_t TensorHash::value() const { return XXH64_digest(state_->xxh.get()); }

std::uint64_t hash_tensors(std::vector<NamedTensor> tensors) {
  std::ranges::sort(tensors, {}, &NamedTensor::name);
  TensorHash hash;
  for (const NamedTensor& item : tensors) hash.add(item.name, item.tensor);
  return hash.value();
}

std::string hash_text(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

}  // namespace dtrun::runtime
