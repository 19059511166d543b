// What ranks tell each other about one save, through the store.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/base/clock.hpp"
#include "rendezvous/store/store.hpp"

namespace dtrun::runtime {

// Words under "checkpoint/NUMBER/": "start" of rank 0, "part/R" of each rank, "failed" of the last one that did,
// "outcome" of rank 0. The last rank that leaves removes them. Used by the writer's thread; waits end at the deadline
// or when `stop` is set, with an Error.
class SaveTalk {
 public:
  SaveTalk(rendezvous::Store& store, std::uint64_t number, int world, Deadline deadline, const std::atomic<bool>& stop);

  void tell(std::string_view word, std::string_view text) { store_.set(key(word), text); }
  // `missing` says what did not come.
  std::string await(std::string_view word, std::string_view missing);
  // The part of each rank in turn, which is removed from the store; throws what the failed rank says as soon as one
  // does.
  std::string await_part(int rank);
  // Until every rank has told its part, here or above, or the time is up.
  void await_all_parts(Clock::duration limit) noexcept;
  void leave() noexcept;

 private:
  std::string key(std::string_view word) const;
  // What was told; nothing after a short while.
  std::optional<std::string> listen(std::string_view word);
  void check_patience(std::string_view missing) const;

  rendezvous::Store& store_;
  std::string prefix_;
  int world_;
  Deadline deadline_;
  const std::atomic<bool>& stop_;
  std::vector<char> heard_;  // whose part came
};

}  // namespace dtrun::runtime
