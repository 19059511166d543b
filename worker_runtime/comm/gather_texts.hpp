// gather_texts(): a short text of every rank, on every rank.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "worker_runtime/comm/gather_values.hpp"

namespace dtrun::runtime {

// Collective. In rank order; each rank sends as many bytes as the longest text has.
inline std::vector<std::string> gather_texts(ProcessGroup& group, const std::string& own) {
  const auto sizes = gather_values(group, static_cast<std::int64_t>(own.size()));
  const auto most = std::ranges::max(sizes);
  std::vector<std::string> texts(sizes.size());
  if (most == 0) return texts;
  const auto mine = Tensor::on_host({most}, DType::u8);
  mine.zero();
  std::memcpy(mine.raw(), own.data(), own.size());
  const auto sent = group.allocate({most}, DType::u8), all = group.allocate({most * group.size()}, DType::u8);
  sent.copy_from(mine);
  group.all_gather(all, sent);
  const auto here = all.to_host();
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const auto* text = reinterpret_cast<const char*>(here.raw()) + static_cast<std::size_t>(most) * rank;
    texts[rank].assign(text, static_cast<std::size_t>(sizes[rank]));
  }
  return texts;
}

}  // namespace dtrun::runtime
