// Cross-entropy of logits whose vocabulary is cut over ranks: they exchange three numbers for each row.
#pragma once

#include "worker_runtime/nn/module.hpp"

namespace dtrun::runtime {

// As cross_entropy (functional.hpp), of logits that lie in columns. The loss has the same bits on every rank.
Value vocab_cross_entropy(Tape& tape, const Value& logits, const Tensor& targets);

}  // namespace dtrun::runtime
