// Vector clocks: who knows of whose work. A participant is a stream or a thread of the host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dtrun::runtime::fake {

struct Moment {
  std::size_t participant;
  std::uint64_t count;
};

class VectorClock {
 public:
  void join(const VectorClock& other) {
    if (counts_.size() < other.counts_.size()) counts_.resize(other.counts_.size());
    for (std::size_t i = 0; i < other.counts_.size(); ++i) counts_[i] = std::max(counts_[i], other.counts_[i]);
  }
  // The next moment of `participant`, which is the owner of this clock.
  Moment tick(std::size_t participant) {
    if (counts_.size() <= participant) counts_.resize(participant + 1);
    return {participant, ++counts_[participant]};
  }
  bool knows(Moment moment) const {
    return moment.participant < counts_.size() && counts_[moment.participant] >= moment.count;
  }

 private:
  std::vector<std::uint64_t> counts_;
};

}  // namespace dtrun::runtime::fake
