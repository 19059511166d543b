// Rotary position embedding (Su et al. 2021) in the form of Hugging Face's Llama: a head of D elements is D/2 pairs
// (x[i], x[D/2 + i]); at position t pair i is turned by the angle t / theta^(2i/D).
#pragma once

#include <cstdint>

#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime::ops {

// How Llama 3.1 stretches the angles for longer sequences than it was first trained on ("llama3" in config.json): slow
// pairs, which do not come round within original_positions / low_frequency positions, turn `factor` times slower; fast
// ones, within original_positions / high_frequency, as before; between the two, in between. factor 1: no scaling.
struct RopeScaling {
  double factor = 1;
  double low_frequency = 1;
  double high_frequency = 4;
  double original_positions = 8192;

  // Throws UsageError.
  void validate() const;
};

// table[T, D]: the D/2 cosines and then the D/2 sines of every position 0 to T - 1. Angles are rounded to f32 as
// Hugging Face's are. Throws ShapeError for an odd D, UsageError unless theta is finite and above 0
// and the scaling is possible.
void rope_table(double theta, const Tensor& table, const RopeScaling& scaling = {});

// y[B, T, heads * D] = x[B, T, heads * D] turned by position; `table` holds T positions or more. y may be x. Throws
// ShapeError unless D divides the width.
void rope_forward(const Tensor& x, const Tensor& table, const Tensor& y);

// dx from dy: turned back. dx may be dy.
void rope_backward(const Tensor& dy, const Tensor& table, const Tensor& dx);

}  // namespace dtrun::runtime::ops
