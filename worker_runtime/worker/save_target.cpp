#include "worker_runtime/worker/save_target.hpp"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/worker/hugging_face_directory.hpp"

namespace dtrun::runtime {
namespace fs = std::filesystem;

bool saves_directory(const std::string& save) {
  std::error_code ignored;
  return save.ends_with('/') || fs::is_directory(save, ignored);
}

std::string weights_target(const std::string& save) {
  return saves_directory(save) ? (fs::path(save) / "model.safetensors").string() : save;
}

void prepare_save(const std::string& save) {
  std::error_code error;
  if (!saves_directory(save) || fs::is_directory(save, error)) return;
  fs::create_directory(save, error);
  if (error == std::errc::file_exists) error = std::make_error_code(std::errc::not_a_directory);
  if (error) throw_errno("train", fmt::format("create \"{}\"", save), error.value());
}

void write_beside_weights(const std::string& save, const TrainConfig& config, const std::string& model) {
  if (!saves_directory(save)) return;
  const std::array<fs::path, 2> from{config.tokenizer, config.of_directory ? config.model : std::string()};
  copy_tokenizer(from, save);
  if (!model.empty()) write_model_config(save, nlohmann::json::parse(model), DType::f32);
}

}  // namespace dtrun::runtime
