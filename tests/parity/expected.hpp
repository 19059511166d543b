// What golden.py wrote of a training run of PyTorch, and how far another run is from it. Common to model_parity and
// modes_parity.
#pragma once

#include <cstdint>
#include <string>

#include "worker_runtime/checkpoint/safetensors.hpp"
#include "worker_runtime/nn/module.hpp"
#include "worker_runtime/optim/adamw.hpp"
#include "worker_runtime/optim/schedule.hpp"

namespace dtrun::runtime::parity {

// The largest difference seen, and where. Limits are those of the issue: losses 1e-5, gradients 2e-5 of the largest of
// each tensor, parameters 1e-4.
struct Worst {
  std::string what;
  double limit;
  double difference = 0;
  std::string where{};

  void see(double value, const std::string& at);
  bool good() const { return difference <= limit; }
  void print() const;
};

// The files of one directory. Throws Error for what they lack.
class Expected {
 public:
  explicit Expected(const std::string& directory);

  Model make_model() const;
  AdamWConfig adamw() const;
  CosineSchedule schedule() const;
  double max_norm() const { return number("max_norm"); }
  const SafetensorsReader& weights() const { return weights_; }
  const SafetensorsReader& tensors() const { return expected_; }
  Tensor read(const std::string& name, Arena& arena) const;

  // Of whole tensors beside those of the file, by the parameter's name.
  static void see_gradient(Worst& worst, const std::string& name, const Tensor& found, const Tensor& expected);
  static void see_parameter(Worst& worst, const std::string& name, const Tensor& found, const Tensor& expected);

 private:
  double number(const std::string& key) const { return std::stod(expected_.metadata().at(key)); }
  std::int64_t integer(const std::string& key) const { return std::stoll(expected_.metadata().at(key)); }

  SafetensorsReader expected_, weights_;
};

}  // namespace dtrun::runtime::parity
