#include "worker_runtime/checkpoint/hash.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <memory>

namespace dtrun::runtime {

struct ByteHash::State {
  std::unique_ptr<XXH64_state_t, decltype(&XXH64_freeState)> xxh{XXH64_createState(), &XXH64_freeState};
};

ByteHash::ByteHash() : state_(std::make_unique<State>()) {
  if (!state_->xxh) throw std::bad_alloc();
  XXH64_reset(state_->xxh.get(), 0);
}

ByteHash::~ByteHash() = default;

void ByteHash::add(std::span<const std::byte> bytes) { XXH64_update(state_->xxh.get(), bytes.data(), bytes.size()); }

std::uint64_t ByteHash::value() const { return XXH64_digest(state_->xxh.get()); }

std::uint64_t hash_bytes(std::span<const std::byte> bytes) { return XXH64(bytes.data(), bytes.size(), 0); }

void TensorHash::add(const std::string& name, const Tensor& tensor) {
  hash_.add(std::as_bytes(std::span(name.c_str(), name.size() + 1)));
  if (tensor.bytes() == 0) return;
  const Tensor here = tensor.to_host();
  hash_.add({here.raw(), here.bytes()});
}

std::uint64_t hash_tensors(std::vector<NamedTensor> tensors) {
  std::ranges::sort(tensors, {}, &NamedTensor::name);
  TensorHash hash;
  for (const NamedTensor& item : tensors) hash.add(item.name, item.tensor);
  return hash.value();
}

std::string hash_text(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

std::optional<std::uint64_t> parse_hash(std::string_view text) {
  std::uint64_t hash = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  if (error != std::errc{} || text != hash_text(hash)) return std::nullopt;
  return hash;
}

}  // namespace dtrun::runtime
