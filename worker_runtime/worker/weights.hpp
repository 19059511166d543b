// The parameters of a model, wherever they lie: in a checkpoint of any layout, or in safetensors files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "worker_runtime/checkpoint/safetensors.hpp"

namespace dtrun::runtime {

// Open for reading, by one thread; owned by who converts. Reading throws Error or SystemError.
class Weights {
 public:
  virtual ~Weights() = default;

  // f32, as they are read, in the model's order.
  const std::vector<TensorDescription>& tensors() const noexcept { return tensors_; }
  // The text of the model's config.json; empty when it is not known.
  const std::string& config() const noexcept { return config_; }
  // Where a tokenizer may lie, the likeliest first.
  const std::vector<std::filesystem::path>& tokenizers() const noexcept { return tokenizers_; }
  const std::string& description() const noexcept { return description_; }  // for people

  // Hands on all elements in order, tensor by tensor, in pieces of one tensor and of at most `most` elements. No more
  // than one piece or tensor of that size is in memory.
  void for_each_piece(const std::function<void(const Tensor& piece)>& take,
                      std::int64_t most = std::int64_t{1} << 24) const;

 protected:
  struct Range {
    std::size_t tensor;
    std::int64_t first;
    Tensor to;  // [elements]
  };
  virtual void read(std::span<const Range> ranges) const = 0;

  std::vector<TensorDescription> tensors_;
  std::string config_;
  std::vector<std::filesystem::path> tokenizers_;
  std::string description_;
};

enum class WeightsKind { checkpoint, hugging_face };  // hugging_face: or a single safetensors file
// By what is there. Throws UsageError when it is neither.
WeightsKind kind_of_weights(const std::filesystem::path& from);

// A step_ directory, or the newest whole one of a directory; every byte is verified, and `damaged` hears of newer ones
// that were passed over. Throws UsageError when there is none, Error when its parameters are not those of its model.
std::unique_ptr<Weights> open_checkpoint_weights(const std::filesystem::path& from,
                                                 const std::function<void(const std::string&)>& damaged);
// A directory with config.json and weights, or a safetensors file, of whose model a config.json beside it tells. Throws
// UsageError, Error.
std::unique_ptr<Weights> open_safetensors_weights(const std::filesystem::path& from);

}  // namespace dtrun::runtime
