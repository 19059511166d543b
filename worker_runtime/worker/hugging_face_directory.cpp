#include "worker_runtime/worker/hugging_face_directory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/checkpoint/file_io.hpp"
#include "worker_runtime/ops/elementwise.hpp"

namespace dtrun::runtime {
namespace fs = std::filesystem;
namespace {

constexpr std::array<std::string_view, 10> kTokenizer = {"tokenizer.json",      "tokenizer_config.json",
                                                         "tokenizer.model",     "special_tokens_map.json",
                                                         "added_tokens.json",   "vocab.json",
                                                         "merges.txt",          "vocab.txt",
                                                         "chat_template.jinja", "spiece.model"};
constexpr const char* kGeneration = "generation_config.json";
constexpr std::uint64_t kLargestCopy = std::uint64_t{1} << 30;

bool has(const fs::path& directory, std::string_view name) {
  std::error_code ignored;
  return !directory.empty() && fs::is_regular_file(directory / name, ignored);
}

}  // namespace

bool is_tokenizer_file(std::string_view name) {
  return name == kGeneration || std::ranges::find(kTokenizer, name) != kTokenizer.end();
}

std::vector<std::string> copy_tokenizer(std::span<const fs::path> from, const fs::path& to) {
  std::vector<std::string> names;
  const auto copy = [&](const fs::path& directory, std::string_view name) {
    if (!has(directory, name)) return false;
    std::error_code ignored;
    const auto place = to / name;
    if (!fs::equivalent(directory / name, place, ignored))
      write_text(place, read_whole((directory / name).string(), kLargestCopy));
    names.emplace_back(name);
    return true;
  };
  // Files of two tokenizers would not fit together.
  const auto one = std::ranges::find_if(from, [](const auto& directory) {
    return std::ranges::any_of(kTokenizer, [&](auto name) { return has(directory, name); });
  });
  if (one != from.end())
    for (const auto name : kTokenizer) copy(*one, name);
  for (const auto& directory : from)
    if (copy(directory, kGeneration)) break;
  return names;
}

WeightFilesWriter::WeightFilesWriter(fs::path directory, const std::vector<TensorDescription>& tensors,
                                     const Options& options)
    : directory_(std::move(directory)), dtype_(options.dtype), parts_(1) {
  std::uint64_t bytes = 0;
  for (const auto& tensor : tensors) {
    const auto numel = tensor.shape.numel();
    const auto more = static_cast<std::uint64_t>(numel) * size_of(dtype_);
    if (bytes + more > options.most && bytes > 0) {
      parts_.emplace_back();
      bytes = 0;
    }
    bytes += more;
    parts_.back().tensors.push_back({tensor.name, dtype_, tensor.shape});
    parts_.back().left += numel;
  }
  name_parts();
  open_next();
}

void WeightFilesWriter::name_parts() {
  if (parts_.size() == 1) {
    parts_[0].name = "model.safetensors";
    return;
  }
  for (std::size_t i = 0; i < parts_.size(); ++i)
    parts_[i].name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, parts_.size());
}

void WeightFilesWriter::open_next() {
  while (next_ < parts_.size()) {
    const auto& part = parts_[next_];
    writer_.emplace((directory_ / part.name).string(), part.tensors,
                    std::map<std::string, std::string>{{"format", "pt"}});
    if (part.left > 0) return;
    writer_->commit();
    ++next_;
  }
  writer_.reset();
}

void WeightFilesWriter::write(const Tensor& part) {
  if (part.numel() == 0) return;
  DTRUN_ASSERT(writer_);
  auto rounded = part;
  if (dtype_ == DType::bf16) {
    rounded = Tensor::on_host(part.shape(), DType::bf16);
    ops::cast_to_bf16(part, rounded);
  }
  writer_->write_elements(rounded);
  parts_[next_].left -= part.numel();
  if (parts_[next_].left > 0) return;
  writer_->commit();
  ++next_;
  open_next();
}

void WeightFilesWriter::write_index() const {
  nlohmann::ordered_json index = {{"metadata", {{"total_size", 0}}}, {"weight_map", nlohmann::ordered_json::object()}};
  std::int64_t elements = 0;
  for (const auto& part : parts_) {
    for (const auto& tensor : part.tensors) {
      elements += tensor.shape.numel();
      index["weight_map"][tensor.name] = part.name;
    }
  }
  index["metadata"]["total_size"] = elements * static_cast<std::int64_t>(size_of(dtype_));
  write_text(directory_ / "model.safetensors.index.json", index.dump(2) + "\n");
}

std::vector<std::string> WeightFilesWriter::commit() {
  DTRUN_ASSERT(next_ == parts_.size());
  if (parts_.size() > 1) write_index();
  std::vector<std::string> names;
  for (const auto& part : parts_) names.push_back(part.name);
  return names;
}

}  // namespace dtrun::runtime
