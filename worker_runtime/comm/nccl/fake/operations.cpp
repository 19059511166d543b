#include "worker_runtime/comm/nccl/fake/operations.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "worker_runtime/comm/shm/reduce.hpp"

namespace dtrun::runtime::nccl::fake {

namespace {

ReduceOp reduce_of(Op op) {
  constexpr std::array kOps{ReduceOp::sum, ReduceOp::product, ReduceOp::max, ReduceOp::min, ReduceOp::avg};
  return kOps[static_cast<std::size_t>(op)];
}

// Chunk by chunk: every rank writes its chunk, tells, waits until all have, reads those of the others. There are two
// buffers: a rank that tells of chunk k + 1 has read all of chunk k.
class CollectiveTask final : public FakeTask {
 public:
  CollectiveTask(std::shared_ptr<FakeComm> comm_in, std::uint64_t number, const Request& request)
      : FakeTask(std::move(comm_in), number), request_(request), turn_(comm().take_collective()) {
    dtype_of(request.type, dtype_);
    item_ = size_of(dtype_);
    pieces_ = request.verb == Verb::reduce_scatter ? static_cast<std::size_t>(comm().size()) : 1;
    chunk_ = std::max<std::size_t>(kChunk / item_ / pieces_, 1);
    sources_.resize(static_cast<std::size_t>(comm().size()));
  }

 protected:
  bool advance() override {
    if (!comm().is_turn_of(turn_)) return false;
    for (;;) {
      const std::size_t count = std::min(chunk_, request_.count - first_);
      if (!std::exchange(written_, true)) write(count);
      for (int rank = 0; rank < comm().size(); ++rank) {
        if (comm().segment().rank(rank).posted.load(std::memory_order_acquire) >= comm().posted) continue;
        comm().look_for_dead();
        return false;
      }
      if (first_ == 0 && !agreed()) return false;
      read(count);
      written_ = false;
      first_ += count;
      if (first_ < request_.count) continue;
      comm().collective_done();
      return true;
    }
  }

 private:
  bool exposes() { return request_.verb != Verb::broadcast || request_.root == comm().rank(); }
  OperationRecord& record(int rank) { return comm().segment().rank(rank).operations[turn_ % 2]; }

  void write(std::size_t count) {
    RankBlock& own = comm().segment().rank(comm().rank());
    if (first_ == 0) {
      record(comm().rank()) = {turn_,
                               request_.count,
                               static_cast<std::int32_t>(request_.verb),
                               static_cast<std::int32_t>(request_.type),
                               static_cast<std::int32_t>(request_.op),
                               request_.root};
    }
    std::byte* to = own.chunks[comm().posted % 2].data();
    const auto* from = static_cast<const std::byte*>(request_.send);
    for (std::size_t piece = 0; exposes() && piece < pieces_; ++piece) {
      std::memcpy(to + piece * count * item_, from + (piece * request_.count + first_) * item_, count * item_);
    }
    own.posted.store(++comm().posted, std::memory_order_release);
  }

  bool agreed() {
    const OperationRecord mine = record(comm().rank());
    bool same = true;
    for (int rank = 0; rank < comm().size(); ++rank) same &= record(rank) == mine;
    if (same) return true;
    std::string text = fmt::format("ranks of \"{}\" called different operations:", comm().name());
    for (int rank = 0; rank < comm().size(); ++rank) {
      const OperationRecord& other = record(rank);
      text += fmt::format(" {} {} x {} root {} op {};", fake::name_of(static_cast<Verb>(other.verb)), other.type,
                          other.count, other.root, other.op);
    }
    comm().fail(internal_error, text);
    return false;
  }

  void read(std::size_t count) {
    const auto rank = static_cast<std::size_t>(comm().rank());
    auto* output = static_cast<std::byte*>(request_.recv);
    for (std::size_t other = 0; other < sources_.size(); ++other) {
      sources_[other] = comm().segment().rank(static_cast<int>(other)).chunks[(comm().posted - 1) % 2].data();
      if (request_.verb == Verb::reduce_scatter) sources_[other] += rank * count * item_;
    }
    if (request_.verb == Verb::all_gather) {
      for (std::size_t other = 0; other < sources_.size(); ++other)
        std::memcpy(output + (other * request_.count + first_) * item_, sources_[other], count * item_);
      return;
    }
    std::byte* to = output + first_ * item_;
    if (request_.verb == Verb::broadcast) {
      std::memcpy(to, sources_[static_cast<std::size_t>(request_.root)], count * item_);
    } else if (request_.verb != Verb::reduce || request_.root == comm().rank()) {
      shm::kernels().reduce({.dtype = dtype_,
                             .op = reduce_of(request_.op),
                             .ranks = comm().size(),
                             .sources = sources_.data(),
                             .outputs = &to,
                             .output_count = 1,
                             .count = count,
                             .stream = false});
    }
  }

  const Request request_;
  const std::uint64_t turn_;
  DType dtype_ = DType::u8;
  std::size_t item_ = 1, pieces_ = 1, chunk_ = 1;
  std::size_t first_ = 0;  // elements done
  bool written_ = false;
  std::vector<const std::byte*> sources_;
};

// Part by part through the mailbox of the two. A message has ended for its sender when it was read.
class MessageTask final : public FakeTask {
 public:
  MessageTask(std::shared_ptr<FakeComm> comm_in, std::uint64_t number, const Request& request)
      : FakeTask(std::move(comm_in), number),
        request_(request),
        sends_(request.verb == Verb::send),
        box_(comm().segment().mailbox(sends_ ? comm().rank() : request.root, sends_ ? request.root : comm().rank())) {
    DType dtype{};
    dtype_of(request.type, dtype);
    total_ = request.count * size_of(dtype);
  }

 protected:
  bool advance() override {
    const bool ended = sends_ ? send() : receive();
    if (!ended) comm().look_for_dead();
    return ended;
  }

 private:
  bool send() {
    for (; done_ < total_; ++last_) {
      const std::uint64_t posted = box_.posted.load(std::memory_order_relaxed);
      if (posted - box_.consumed.load(std::memory_order_acquire) >= 2) return false;
      const std::size_t bytes = std::min(kLetterPart, total_ - done_);
      box_.parts[posted % 2] = {total_, done_, static_cast<std::int32_t>(request_.type)};
      std::memcpy(box_.data[posted % 2].data(), static_cast<const std::byte*>(request_.send) + done_, bytes);
      done_ += bytes;
      box_.posted.store(posted + 1, std::memory_order_release);
      last_ = posted;
    }
    return box_.consumed.load(std::memory_order_acquire) >= last_;
  }

  bool receive() {
    while (done_ < total_) {
      const std::uint64_t consumed = box_.consumed.load(std::memory_order_relaxed);
      if (box_.posted.load(std::memory_order_acquire) == consumed) return false;
      const Mailbox::Part& part = box_.parts[consumed % 2];
      if (part.total != total_ || part.offset != done_ || part.type != static_cast<std::int32_t>(request_.type)) {
        comm().fail(internal_error,
                    fmt::format("\"{}\": {} bytes of type {} were sent, {} of type {} expected", comm().name(),
                                part.total, part.type, total_, static_cast<int>(request_.type)));
        return false;
      }
      const std::size_t bytes = std::min(kLetterPart, total_ - done_);
      std::memcpy(static_cast<std::byte*>(request_.recv) + done_, box_.data[consumed % 2].data(), bytes);
      done_ += bytes;
      box_.consumed.store(consumed + 1, std::memory_order_release);
    }
    return true;
  }

  const Request request_;
  const bool sends_;
  Mailbox& box_;
  std::size_t total_ = 0, done_ = 0;
  std::uint64_t last_ = 0;  // parts posted up to this message's last one
};

}  // namespace

const char* name_of(Verb verb) {
  constexpr std::array kNames{"all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "send", "recv"};
  const auto at = static_cast<std::size_t>(verb);
  return at < kNames.size() ? kNames[at] : "?";
}

bool dtype_of(DataType type, DType& dtype) {
  switch (type) {
    case DataType::f32:
      dtype = DType::f32;
      return true;
    case DataType::bf16:
      dtype = DType::bf16;
      return true;
    case DataType::i32:
      dtype = DType::i32;
      return true;
    case DataType::i64:
      dtype = DType::i64;
      return true;
    case DataType::u8:
      dtype = DType::u8;
      return true;
    default:
      return false;
  }
}

FakeTask::FakeTask(std::shared_ptr<FakeComm> comm, std::uint64_t number)
    : comm_(std::move(comm)), fault_(comm_->fault_at(number)), number_(number) {}

Poll FakeTask::poll() {
  if (ended_ || comm_->aborted()) return Poll::done;
  if (comm_->failed()) return Poll::again;
  if (fault_ != nullptr) {
    if (fault_->kind == FaultKind::remote_error)
      comm_->fail(remote_error, fmt::format("scripted fault of operation {} of \"{}\"", number_, comm_->name()));
    return Poll::again;
  }
  ended_ = advance();
  return ended_ ? Poll::done : Poll::again;
}

std::unique_ptr<FakeTask> make_task(std::shared_ptr<FakeComm> comm, const Request& request) {
  const std::uint64_t number = comm->take_number();
  if (request.verb == Verb::send || request.verb == Verb::recv)
    return std::make_unique<MessageTask>(std::move(comm), number, request);
  return std::make_unique<CollectiveTask>(std::move(comm), number, request);
}

}  // namespace dtrun::runtime::nccl::fake
