// Hub: where the ranks of a LoopbackGroup, threads of one process, meet. Shared by their groups; any thread. A rank
// that does not come within the deadline, or whose group died, ends every wait with a CommError that names it, for
// ever.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rendezvous/base/clock.hpp"
#include "worker_runtime/comm/descriptor.hpp"
#include "worker_runtime/device/device.hpp"

namespace dtrun::runtime::loopback {

// One operation of one rank: addresses on the device that all ranks share.
struct Part {
  Descriptor descriptor{};
  std::array<char, 48> label{};
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
};

// What a rank says when all meet.
struct Posted {
  std::vector<Part> parts;
  Event event;  // when its memory may be touched, or when it has finished with the others'
};

// A message on its way. The sender keeps the tensor until it was copied.
struct Letter {
  const std::byte* data = nullptr;
  std::uint64_t count = 0;
  DType dtype = DType::u8;
  std::uint32_t tag = 0;
  Event ready;
  bool is_taken = false;
  Event copied;  // once taken
};

class Hub {
 public:
  Hub(std::string name, int size);

  int size() const noexcept { return size_; }
  // Returns when all ranks have called: what each gave, by rank. `doing` is for the error of a wait in vain.
  using Round = std::shared_ptr<const std::vector<Posted>>;
  Round exchange(int rank, Posted posted, Deadline deadline, std::string_view doing);
  // Of the split number `number` of every rank: the hub of `ranks`, made by the first that asks.
  std::shared_ptr<Hub> child(int number, const std::vector<int>& ranks, const std::string& name);

  // Letters of a pair are numbered by both ends.
  struct Address {
    int from, to;
    std::uint64_t number;
    auto operator<=>(const Address&) const = default;
  };
  void post(const Address& address, std::shared_ptr<Letter> letter);
  // Null when the deadline passed; one that has passed asks without waiting.
  std::shared_ptr<Letter> take(const Address& address, Deadline deadline);
  void mark_taken(Letter& letter, Event copied);
  // Whether the letter was taken before the deadline.
  bool await_taken(const Letter& letter, int to, Deadline deadline);

  // Ends all waits, now and later.
  [[noreturn]] void fail(const std::string& text);
  void leave(int rank) noexcept;

 private:
  Round taken();
  void throw_if_failed() const;
  void throw_if_gone(int rank) const;
  std::string missing_ranks() const;

  const std::string name_;
  const int size_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string failed_;
  std::vector<bool> gone_, here_;
  std::vector<Posted> posted_;
  int arrived_ = 0;
  std::uint64_t rounds_ = 0;
  Round round_;
  int to_take_ = 0;  // ranks that have not taken it
  std::map<std::pair<int, std::vector<int>>, std::pair<std::shared_ptr<Hub>, std::size_t>> children_;  // and askers
  std::map<Address, std::shared_ptr<Letter>> letters_;
};

}  // namespace dtrun::runtime::loopback
