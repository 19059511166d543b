#include "worker_runtime/core/arena.hpp"

#include "tests/catch.hpp"

using namespace dtrun::runtime;

TEST_CASE("an arena charges the account while a block lives and reuses it afterwards") {
  MemoryAccount account;
  Arena arena(MemoryTag::activation, account);
  std::byte* first = nullptr;
  {
    const auto block = arena.allocate(100);
    first = block->data();
    CHECK(reinterpret_cast<std::uintptr_t>(first) % Arena::kAlignment == 0);
    CHECK(account.current(MemoryTag::activation) == 128);
  }
  CHECK(account.current(MemoryTag::activation) == 0);
  CHECK(account.peak(MemoryTag::activation) == 128);
  const auto again = arena.allocate(120);
  CHECK(again->data() == first);
  CHECK(arena.reserved() == 128);
  CHECK(account.current(MemoryTag::param) == 0);
}

TEST_CASE("a block may outlive its arena") {
  MemoryAccount account;
  std::shared_ptr<Storage> block;
  {
    Arena arena(MemoryTag::param, account);
    block = arena.allocate(64);
  }
  block->data()[63] = std::byte{1};
  block.reset();
  CHECK(account.current(MemoryTag::param) == 0);
}
