// Writing what Hugging Face's from_pretrained() reads: config.json, weights in one file or in parts, tokenizer files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "worker_runtime/checkpoint/safetensors.hpp"
#include "worker_runtime/worker/model_choice.hpp"

namespace dtrun::runtime {

// config.json of a model that no directory described; `longest`: sequence that it was trained on. Token ids are not
// known to it.
nlohmann::json hugging_face_config(const ModelChoice& choice, std::int64_t longest);

// The file as it goes beside weights of this type. Ids of the first and the last token, when nothing else says them,
// are those of "<|endoftext|>" in the vocab.json there. Throws SystemError.
void write_model_config(const std::filesystem::path& directory, nlohmann::json config, DType dtype);

// What such directories have beside weights and config.json, for messages and as names.
bool is_tokenizer_file(std::string_view name);
// Copies the tokenizer of the first of these directories that has one, and generation_config.json of the first that has
// it. Empty paths, and those that are not there, have nothing. The names of the copies. Throws Error, SystemError.
std::vector<std::string> copy_tokenizer(std::span<const std::filesystem::path> from, const std::filesystem::path& to);

// Writes tensors in order, piece by piece, into model.safetensors, or into parts of at most `most` bytes (but one
// tensor at least) with model.safetensors.index.json. Files are durable once they are complete. One thread. Throws
// Error, SystemError.
class WeightFilesWriter {
 public:
  struct Options {
    DType dtype = DType::f32;  // or bf16: rounded to nearest even
    std::uint64_t most = 5'000'000'000;
  };
  WeightFilesWriter(std::filesystem::path directory, const std::vector<TensorDescription>& tensors,
                    const Options& options);
  // f32: the next elements, of one tensor.
  void write(const Tensor& part);
  // The names of the files, when all was written.
  std::vector<std::string> commit();

 private:
  struct Part {
    std::string name;
    std::vector<TensorDescription> tensors;
    std::int64_t left = 0;  // elements
  };
  void name_parts();
  void open_next();
  void write_index() const;

  std::filesystem::path directory_;
  DType dtype_;
  std::vector<Part> parts_;
  std::size_t next_ = 0;
  std::optional<SafetensorsWriter> writer_;  // of part next_
};

}  // namespace dtrun::runtime
