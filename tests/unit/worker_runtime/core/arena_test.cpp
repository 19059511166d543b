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

TEST_CASE("a slightly larger free block is reused, a much larger one is not, and the account stays exact", "[arena]") {
  using namespace dtrun::runtime;
  MemoryAccount account;
  Arena arena(MemoryTag::work, account);
  arena.allocate(6400).reset();
  auto close = arena.allocate(6336);  // takes the block of 6400
  CHECK(arena.reserved() == 6400);
  CHECK(account.current(MemoryTag::work) == 6336);
  close.reset();
  auto again = arena.allocate(6400);  // the block kept its size
  auto small = arena.allocate(64);
  CHECK(arena.reserved() == 6464);
  CHECK(account.current(MemoryTag::work) == 6464);
  again.reset();
  small.reset();
  auto half = arena.allocate(3200);  // 6400 would waste half
  CHECK(arena.reserved() == 6464 + 3200);
  half.reset();
  CHECK(account.current(MemoryTag::work) == 0);
}

TEST_CASE("an abstract account is charged like any other, for blocks without memory") {
  MemoryAccount account(MemoryAccount::Kind::abstract), real;
  Arena arena(MemoryTag::grad, account), with_memory(MemoryTag::grad, real);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{64}, std::size_t{100}}) {
    const auto block = arena.allocate(bytes), other = with_memory.allocate(bytes);
    CHECK(block->is_abstract());
    CHECK_FALSE(other->is_abstract());
    CHECK(block->bytes() == bytes);
    CHECK(account.current(MemoryTag::grad) == real.current(MemoryTag::grad));
  }
  const auto huge = arena.allocate(std::size_t{1} << 50);
  CHECK(account.peak(MemoryTag::grad) == std::size_t{1} << 50);
  CHECK(arena.reserved() == 0);
}
