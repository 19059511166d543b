// What the ranks of a NcclGroup called is compared through the store before data moves.
#include <fmt/format.h>

#include <cstring>

#include "rendezvous/base/error.hpp"
#include "rendezvous/store/store.hpp"
#include "worker_runtime/comm/nccl/nccl_group.hpp"

namespace dtrun::runtime::nccl {

namespace {

struct Entry {
  Descriptor descriptor;
  std::array<char, 48> label;
};

std::string text_of(const std::string& entries) {
  std::string text;
  for (std::size_t at = 0; at + sizeof(Entry) <= entries.size(); at += sizeof(Entry)) {
    Entry entry{};
    std::memcpy(&entry, entries.data() + at, sizeof entry);
    text += (text.empty() ? "" : ", then ") + describe(entry.descriptor, entry.label);
  }
  return text;
}

bool same(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t at = 0; at < a.size(); at += sizeof(Entry)) {
    if (std::memcmp(a.data() + at, b.data() + at, sizeof(Descriptor)) != 0) return false;
  }
  return true;
}

}  // namespace

void NcclGroup::compare(std::span<const Collective> calls, const Called& called, const CommAction& action) {
  std::string mine;
  for (const Collective& call : calls) {
    const Tensor* part = part_of(call);
    const Entry entry{
        descriptor_of(call, called.number, part == nullptr ? 0 : static_cast<std::uint64_t>(part->numel()),
                      part == nullptr ? DType::u8 : part->dtype(), action),
        action.label};
    mine.append(reinterpret_cast<const char*>(&entry), sizeof entry);
  }
  const auto key = [&](std::uint64_t number, int rank) {
    return fmt::format("{}call/{}/{}", watched_->prefix, number, rank);
  };
  domain_->store().set(key(called.number, rank()), mine);
  const Deadline deadline = Deadline::after(options().timeout);
  std::vector<std::string> all;
  bool differ = false;
  for (int other = 0; other < size(); ++other) {
    all.push_back(
        other == rank()
            ? mine
            : domain_->await_key(key(called.number, other), deadline,
                                 fmt::format("group \"{}\": rank {} waited {} s in {}; missing: rank {}", name(),
                                             domain_->rank(), std::chrono::duration<double>(options().timeout).count(),
                                             called.text(), job_rank(other))));
    differ |= !same(mine, all.back());
  }
  // Everyone has begun this one, so nobody reads the one before.
  if (called.number > 1) domain_->store().delete_key(key(called.number - 1, rank()));
  if (!differ) return;
  std::string text =
      fmt::format("group \"{}\": the ranks called different operations as number {}:", name(), called.number);
  for (int other = 0; other < size(); ++other)
    text += fmt::format("\n  rank {}: {}", job_rank(other), text_of(all[static_cast<std::size_t>(other)]));
  domain_->fail(text);
}

}  // namespace dtrun::runtime::nccl
