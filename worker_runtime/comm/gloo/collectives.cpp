// The collectives of a GlooGroup that copy, and small sums. See the picture in gloo_group.hpp.
#include <algorithm>
#include <cstring>

#include "worker_runtime/comm/gloo/gloo_group.hpp"
#include "worker_runtime/comm/gloo/link.hpp"
#include "worker_runtime/comm/shm/reduce.hpp"

namespace dtrun::runtime::gloo {

GlooGroup::Plan GlooGroup::plan(const Collective& call) const {
  Plan result;
  if (call.op == CommOp::barrier) return result;
  const Tensor& part = *part_of(call);
  result.dtype = part.dtype();
  result.item = size_of(part.dtype());
  result.part = result.count = static_cast<std::size_t>(part.numel());
  if (call.op == CommOp::all_to_all) result.part /= static_cast<std::size_t>(size());
  const std::size_t bytes = result.part * result.item;
  const auto others = static_cast<std::size_t>(std::max(size() - 1, 1));
  result.is_inline = bytes <= kInlineBytes && (call.op != CommOp::all_reduce || bytes * others <= kInlineReduceBytes);
  return result;
}

GlooGroup::Piece GlooGroup::outgoing(const Collective& call, const Plan& cut, int peer) const {
  const std::size_t bytes = cut.part * cut.item;
  const bool is_root = call.root == rank();
  const auto part = [&](int index) {
    return Piece{call.input->raw() + static_cast<std::size_t>(index) * bytes, bytes};
  };
  switch (call.op) {
    case CommOp::all_reduce:
    case CommOp::all_gather:
      return part(0);
    case CommOp::reduce:
    case CommOp::gather:
      return call.root == peer ? part(0) : Piece{};
    case CommOp::broadcast:
      return is_root ? part(0) : Piece{};
    case CommOp::scatter:
      return is_root ? part(peer) : Piece{};
    case CommOp::reduce_scatter:
    case CommOp::all_to_all:
      return part(peer);
    default:
      return {};
  }
}

GlooGroup::Piece GlooGroup::incoming(const Collective& call, const Plan& cut, int peer) const {
  const std::size_t bytes = cut.part * cut.item;
  const auto part = [&](int index) {
    return Piece{call.output->raw() + static_cast<std::size_t>(index) * bytes, bytes};
  };
  switch (call.op) {
    case CommOp::all_gather:
    case CommOp::all_to_all:
      return part(peer);
    case CommOp::gather:
      return call.root == rank() ? part(peer) : Piece{};
    case CommOp::broadcast:
    case CommOp::scatter:
      return call.root == peer ? part(0) : Piece{};
    default:
      return {};
  }
}

// What a rank sends to itself.
void GlooGroup::copy_own(const Collective& call, const Plan& cut) const {
  const std::size_t bytes = cut.part * cut.item;
  const std::size_t own = static_cast<std::size_t>(rank()) * bytes;
  const bool is_root = call.root == rank();
  const bool from_part = call.op == CommOp::all_to_all || (call.op == CommOp::scatter && is_root);
  const bool to_part =
      call.op == CommOp::all_gather || call.op == CommOp::all_to_all || (call.op == CommOp::gather && is_root);
  if (bytes == 0 || !(from_part || to_part)) return;
  const std::byte* from = call.input->raw() + (from_part ? own : 0);
  std::byte* to = call.output->raw() + (to_part ? own : 0);
  if (from != to) shm::kernels().copy(to, from, bytes, false);
}

void GlooGroup::finish_inline(const Collective& call, const Plan& cut) {
  const std::size_t bytes = cut.part * cut.item;
  if (bytes == 0) return;
  const std::size_t parity = sequence_ % 2;
  if (!reduces(call.op)) {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      const Piece piece = incoming(call, cut, peer);
      if (piece.bytes != 0) std::memcpy(piece.data, link(peer).in[parity].data.data(), piece.bytes);
    }
    return copy_own(call, cut);
  }
  if (call.op == CommOp::reduce && call.root != rank()) return;
  std::vector<const std::byte*> sources;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) {
      sources.push_back(outgoing(call, cut, call.op == CommOp::reduce ? call.root : peer).data);
    } else {
      sources.push_back(link(peer).in[parity].data.data());
    }
  }
  std::byte* result = call.output->raw();
  shm::kernels().reduce({.dtype = cut.dtype,
                         .op = call.reduce,
                         .ranks = size(),
                         .sources = sources.data(),
                         .outputs = &result,
                         .output_count = 1,
                         .count = cut.part,
                         .stream = false});
}

void GlooGroup::exchange(const Collective& call, const Plan& cut) {
  std::vector<std::pair<int, std::unique_ptr<Buffer>>> receiving, sending;
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + size() - step) % size();
    const Piece piece = incoming(call, cut, peer);
    if (piece.bytes == 0) continue;
    receiving.emplace_back(peer, mesh_->buffer(piece.data, piece.bytes));
    post_receive(*receiving.back().second, peer, kData, 0, piece.bytes);
  }
  for (int step = 1; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    const Piece piece = outgoing(call, cut, peer);
    if (piece.bytes == 0) continue;
    sending.emplace_back(peer, mesh_->buffer(piece.data, piece.bytes));
    post_send(*sending.back().second, peer, kData, 0, piece.bytes);
  }
  copy_own(call, cut);
  for (auto& [peer, buffer] : receiving) await(*buffer, Wait::receive, peer);
  for (auto& [peer, buffer] : sending) await(*buffer, Wait::send, peer);
}

}  // namespace dtrun::runtime::gloo
