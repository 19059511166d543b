// gather_values(): a small value of every rank, on every rank.
#pragma once

#include <cstring>
#include <type_traits>
#include <vector>

#include "worker_runtime/comm/process_group.hpp"

namespace dtrun::runtime {

// Collective. In rank order; goes through memory of the group, wherever that is, and waits for it.
template <class T>
std::vector<T> gather_values(ProcessGroup& group, const T& own) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto bytes = static_cast<std::int64_t>(sizeof own);
  const auto mine = Tensor::on_host({bytes}, DType::u8);
  std::memcpy(mine.raw(), &own, sizeof own);
  const auto sent = group.allocate({bytes}, DType::u8), all = group.allocate({bytes * group.size()}, DType::u8);
  sent.copy_from(mine);
  group.all_gather(all, sent);
  std::vector<T> values(static_cast<std::size_t>(group.size()));
  const auto here = all.to_host();
  std::memcpy(values.data(), here.raw(), here.bytes());
  return values;
}

}  // namespace dtrun::runtime
