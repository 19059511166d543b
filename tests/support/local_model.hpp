// A model on one process with all its memory: what the parallel layer does, at its simplest. For tests and benchmarks.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "worker_runtime/checkpoint/safetensors.hpp"
#include "worker_runtime/nn/module.hpp"
#include "worker_runtime/optim/optimizer.hpp"

namespace dtrun::runtime::testing {

struct LocalModel {
  // `ranks`: when the model was cut for them by parallelize().
  explicit LocalModel(Model built, std::uint64_t seed = 1, TensorParallel* ranks = nullptr)
      : model(std::move(built)), parameters(model.parameters()) {
    context.tensor_parallel = ranks;
    for (Parameter* parameter : parameters) {
      parameter->bind_value(Tensor::empty(parameter->local_shape(), DType::f32, param_arena));
      parameter->bind_grad(Tensor::zeros(parameter->local_shape(), DType::f32, grad_arena));
      parameter->fill_initial(seed, parameter->value());
    }
  }

  // Forward and backward of one micro-batch; gradients are in Parameter::grad() afterwards.
  float loss_and_gradients(const Batch& batch, bool two_phases = false) {
    for (Parameter* parameter : parameters) parameter->clear_grad();
    std::vector<Tape> tapes;
    Tensor x;
    for (std::size_t i = 0; i < model.size(); ++i) {
      tapes.emplace_back(context);
      x = model.unit(i).run(tapes.back(), x, batch);
    }
    const float loss = *x.data<float>();
    Tensor grad;
    for (std::size_t i = tapes.size(); i-- > 0;) {
      Tape tape = std::move(tapes[i]);
      grad = two_phases ? tape.backward_input(grad) : tape.backward(grad);
      if (two_phases) tape.backward_weight();
    }
    return loss;
  }

  float loss(const Batch& batch) {
    Tensor x;
    for (std::size_t i = 0; i < model.size(); ++i) {
      Tape tape(context, Tape::Mode::inference);
      x = model.unit(i).run(tape, x, batch);
    }
    return *x.data<float>();
  }

  std::vector<OptimizerPiece> pieces() const {
    std::vector<OptimizerPiece> result;
    for (const Parameter* p : parameters) result.push_back({p->name(), p->value(), p->grad(), p->is_matrix(), 0});
    return result;
  }
  std::vector<NamedTensor> values() const {
    std::vector<NamedTensor> result;
    for (const Parameter* p : parameters) result.push_back({p->name(), p->value()});
    return result;
  }
  // i32 [rows, columns]
  Tensor ids(std::int64_t rows, std::int64_t columns, const std::vector<std::int32_t>& values) {
    const Tensor tensor = Tensor::empty({rows, columns}, DType::i32, activation_arena);
    std::copy(values.begin(), values.end(), tensor.data<std::int32_t>());
    return tensor;
  }

  MemoryAccount account;
  Arena param_arena{MemoryTag::param, account};
  Arena grad_arena{MemoryTag::grad, account};
  Arena activation_arena{MemoryTag::activation, account};
  Arena work_arena{MemoryTag::work, account};
  RunContext context{activation_arena, work_arena};
  Model model;
  std::vector<Parameter*> parameters;
};

}  // namespace dtrun::runtime::testing
