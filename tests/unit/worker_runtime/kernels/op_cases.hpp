// A table of the ops with tensors for each, to be run in host memory and on a device.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime::test {

struct OpCase {
  struct Operand {
    Tensor host;
    bool stays_f32 = false;  // where the others are bf16
    bool check = true;       // of use after the op
  };
  std::string name;
  std::vector<Operand> operands;
  std::function<void(std::span<const Tensor>)> run;
  double tolerance = 2e-5;  // of the default CPU level
  bool has_bf16 = true;     // all operands but those that stay f32 may be bf16 together
  bool product = false;     // wants a device with cuBLASLt
};

std::vector<OpCase> op_cases();

}  // namespace dtrun::runtime::test
