// What --save names: a safetensors file, or a Hugging Face directory (one that is there, or a name that ends with "/").
#pragma once

#include <string>

#include "worker_runtime/worker/train_config.hpp"

namespace dtrun::runtime {

bool saves_directory(const std::string& save);
// Of the weights: the file itself, or DIR/model.safetensors.
std::string weights_target(const std::string& save);
// Makes the directory that --save names. Throws SystemError.
void prepare_save(const std::string& save);
// What a directory has beside its weights: config.json (`model`: its text, empty when it is not known), and the
// tokenizer files of --tokenizer or --model DIR. Throws Error, SystemError.
void write_beside_weights(const std::string& save, const TrainConfig& config, const std::string& model);

}  // namespace dtrun::runtime
