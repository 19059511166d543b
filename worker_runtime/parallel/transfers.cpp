#include "worker_runtime/parallel/transfers.hpp"

#include <fmt/format.h>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime {

Transfers::Transfers(const Program& program, ProcessGroup& group)
    : program_(program), group_(group), works_(program.transfers.size()) {
  for (const auto& transfer : program.transfers)
    buffers_.push_back(group.allocate(Shape{transfer.numel}, DType::f32, MemoryTag::comm));
}

void Transfers::send(const Action& action, const Tensor& payload) {
  const auto& target = buffer(action.buffer);
  if (!payload.defined() || payload.numel() != target.numel()) {
    throw ShapeError("parallel", fmt::format("the program sends {} elements, there are {}", target.numel(),
                                             payload.defined() ? payload.numel() : 0));
  }
  target.copy_from(payload.view(target.shape()));
  works_[static_cast<std::size_t>(action.buffer)] = group_.send_async(target, action.peer, program_.tag_of(action));
}

void Transfers::recv(const Action& action) {
  works_[static_cast<std::size_t>(action.buffer)] =
      group_.recv_async(buffer(action.buffer), action.peer, program_.tag_of(action));
}

void Transfers::wait(const Action& action) {
  auto& work = works_[static_cast<std::size_t>(action.buffer)];
  work.wait();
  work = Work();
}

}  // namespace dtrun::runtime
