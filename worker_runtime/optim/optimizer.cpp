#include "worker_runtime/optim/optimizer.hpp"

#include <fmt/format.h>

#include <utility>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime {
namespace {

void check_piece(const OptimizerPiece& piece, const Tensor& grad) {
  if (!piece.value.defined() || piece.value.dtype() != DType::f32) {
    throw ShapeError("optim", fmt::format("{} has no f32 value", piece.name));
  }
  if (grad.defined() && (grad.dtype() != DType::f32 || grad.numel() != piece.value.numel())) {
    throw ShapeError("optim", fmt::format("gradient of {}: {} {}, expected f32 with {} elements", piece.name,
                                          name_of(grad.dtype()), grad.shape().to_string(), piece.value.numel()));
  }
}

}  // namespace

Optimizer::Optimizer(std::vector<OptimizerPiece> pieces) : pieces_(std::move(pieces)) {
  for (const OptimizerPiece& piece : pieces_) check_piece(piece, piece.grad);
}

void Optimizer::set_grad(std::size_t piece, Tensor grad) {
  check_piece(pieces_.at(piece), grad);
  pieces_[piece].grad = std::move(grad);
}

void Optimizer::check_grads() const {
  for (const OptimizerPiece& piece : pieces_) {
    if (!piece.grad.defined()) throw ShapeError("optim", fmt::format("{} has no gradient", piece.name));
  }
}

std::vector<Tensor> Optimizer::make_state(Arena& arena) const {
  std::vector<Tensor> tensors;
  for (const OptimizerPiece& piece : pieces_) tensors.push_back(Tensor::zeros(piece.value.shape(), DType::f32, arena));
  return tensors;
}

void Optimizer::append_state(std::string_view suffix, const std::vector<Tensor>& tensors,
                             std::vector<OptimizerState>& states) const {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    states.push_back({fmt::format("{}.{}", pieces_[i].name, suffix), pieces_[i].first, tensors[i]});
  }
}

}  // namespace dtrun::runtime
