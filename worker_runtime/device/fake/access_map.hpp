// Who touched which bytes last: finds accesses that nothing orders. Guarded by the lock of FakeCuda.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "worker_runtime/device/fake/clock.hpp"

namespace dtrun::runtime::fake {

// Who an access belongs to, for reports.
struct Label {
  std::string operation;    // "add_f32 (operation 17)"
  std::string participant;  // "stream 2 \"gather\"", "the host"
};

struct Touch {
  Moment moment;
  std::shared_ptr<const Label> label;
};

struct Conflict {
  std::uintptr_t begin, end;  // the bytes that both touch
  bool earlier_writes;
  std::shared_ptr<const Label> earlier;
};

class AccessMap {
 public:
  // Notes that `touch`, which knows of `clock`, reads or writes [begin, end). Returns the first access before it that
  // conflicts with it and that `clock` does not know.
  std::optional<Conflict> touch(std::uintptr_t begin, std::uintptr_t end, bool writes, const Touch& touch,
                                const VectorClock& clock);
  // The first access of [begin, end) that `clock` does not know.
  std::optional<Conflict> unknown(std::uintptr_t begin, std::uintptr_t end, const VectorClock& clock) const;
  void forget(std::uintptr_t begin, std::uintptr_t end);
  std::size_t size() const { return intervals_.size(); }

 private:
  struct Interval {
    std::uintptr_t end;
    std::optional<Touch> written;
    std::vector<Touch> read;  // since then, the last one of each participant
  };
  using Intervals = std::map<std::uintptr_t, Interval>;
  void split(std::uintptr_t at);
  static std::optional<Conflict> conflict_in(std::uintptr_t begin, const Interval& interval, bool writes,
                                             const VectorClock& clock);

  Intervals intervals_;  // by first byte, disjoint
};

}  // namespace dtrun::runtime::fake
