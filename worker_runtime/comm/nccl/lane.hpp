// How messages between two ranks of a NcclGroup travel.
#pragma once

#include "worker_runtime/comm/nccl/nccl_group.hpp"

namespace dtrun::runtime::nccl {

DataType nccl_type(DType dtype);

// One direction between this rank and a peer. Owned by the group.
struct NcclGroup::Lane {
  enum class State { alone, meeting, ready };
  int peer = 0;
  bool outgoing = false;
  State state = State::alone;
  bool advancing = false;
  std::shared_ptr<Channel> channel;
  std::uint64_t messages = 0;
  std::deque<std::shared_ptr<Message>> waiting;  // until the lane is ready
  Clock::time_point next_look{};                 // for the other end's id
};

class NcclGroup::Message final : public StreamWork {
 public:
  // `tensor`: on the device; `host`: where its elements go in the end, if they were staged.
  Message(NcclGroup& group, Lane& lane, Called called, Tensor tensor, Tensor host, std::uint32_t tag);

 protected:
  bool await_start(Deadline deadline) override;
  bool is_on_stream() override;
  void at_end() override;

 private:
  friend class NcclGroup;
  NcclGroup& group_;
  Lane& lane_;
  Called called_;
  Tensor tensor_, host_;
  std::uint32_t tag_;
  Event before_;
  Clock::time_point limit_;
  bool on_stream_ = false;
  bool compared_ = false;
};

}  // namespace dtrun::runtime::nccl
