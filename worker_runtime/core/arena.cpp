#include "worker_runtime/core/arena.hpp"

#include <algorithm>
#include <map>
#include <new>

namespace dtrun::runtime {

struct Arena::Pool {
  Pool(MemoryTag tag_in, MemoryAccount& account_in) : tag(tag_in), account(account_in) {}
  ~Pool() {
    for (auto& [bytes, data] : free_blocks) ::operator delete(data, std::align_val_t(kAlignment));
  }

  MemoryTag tag;
  MemoryAccount& account;
  std::size_t reserved = 0;
  std::multimap<std::size_t, std::byte*> free_blocks;
};

Arena::Arena(MemoryTag tag, MemoryAccount& account) : pool_(std::make_shared<Pool>(tag, account)) {}

std::shared_ptr<Storage> Arena::allocate(std::size_t bytes) {
  const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  if (pool_->account.is_abstract()) {
    pool_->account.add(pool_->tag, rounded);
    return std::make_shared<Storage>(Storage::Abstract{}, bytes, [pool = pool_, rounded](std::byte*, std::size_t) {
      pool->account.remove(pool->tag, rounded);
    });
  }
  std::byte* data = nullptr;
  std::size_t block_bytes = rounded;
  // Best fit; a block more than an eighth too large is left for those it was made for.
  if (const auto found = pool_->free_blocks.lower_bound(rounded);
      found != pool_->free_blocks.end() && found->first <= rounded + rounded / 8) {
    block_bytes = found->first;
    data = found->second;
    pool_->free_blocks.erase(found);
  } else {
    data = static_cast<std::byte*>(::operator new(rounded, std::align_val_t(kAlignment)));
    pool_->reserved += rounded;
  }
  pool_->account.add(pool_->tag, rounded);
  return std::make_shared<Storage>(data, bytes, [pool = pool_, rounded, block_bytes](std::byte* block, std::size_t) {
    pool->account.remove(pool->tag, rounded);
    pool->free_blocks.emplace(block_bytes, block);
  });
}

MemoryTag Arena::tag() const noexcept { return pool_->tag; }
std::size_t Arena::reserved() const noexcept { return pool_->reserved; }

}  // namespace dtrun::runtime
