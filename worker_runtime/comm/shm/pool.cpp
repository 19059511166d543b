#include "worker_runtime/comm/shm/pool.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <vector>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime::shm {

namespace {

// Ranks that are threads of one process use each other's mapping: cheaper, and thread sanitizers see one address per
// byte.
struct Registry {
  std::mutex mutex;
  std::vector<std::pair<std::array<std::uint64_t, 2>, std::weak_ptr<Pool>>> pools;
};

Registry& registry() {
  static Registry instance;
  return instance;
}

std::size_t rounded(std::size_t bytes) {
  return (std::max<std::size_t>(bytes, 1) + Pool::kAlignment - 1) / Pool::kAlignment * Pool::kAlignment;
}

}  // namespace

Mapping::Mapping(int fd, std::size_t bytes) : bytes_(bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (data == MAP_FAILED) throw_errno("comm", fmt::format("mapping {} bytes of shared memory", bytes));
  data_ = static_cast<std::byte*>(data);
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

std::shared_ptr<Pool> Pool::create() {
  const std::shared_ptr<Pool> pool(new Pool());
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.pools, [](const auto& entry) { return entry.second.expired(); });
  all.pools.emplace_back(pool->header().token, pool);
  return pool;
}

std::shared_ptr<Pool> Pool::find_in_process(const std::array<std::uint64_t, 2>& token) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (const auto& [known, pool] : all.pools) {
    if (known == token) return pool.lock();
  }
  return nullptr;
}

Pool::Pool() {
  add_segment(0);
  auto* head = new (mappings_[0].data()) PoolHeader{};
  if (::getrandom(head->token.data(), sizeof(head->token), 0) != static_cast<ssize_t>(sizeof(head->token))) {
    throw_errno("comm", "reading random bytes");
  }
  head->segments[0] = {fds_[0].value(), mappings_[0].bytes()};
  head->count.store(1, std::memory_order_release);
  head->magic = PoolHeader::kMagic;
  free_.begin()->second -= rounded(sizeof(PoolHeader));
  auto node = free_.extract(free_.begin());
  node.key() += rounded(sizeof(PoolHeader));
  free_.insert(std::move(node));
}

Pool::~Pool() = default;

void Pool::add_segment(std::size_t at_least) {
  const std::uint32_t index = count_.load(std::memory_order_relaxed);
  if (index == kMaxSegments) throw CommError("comm", fmt::format("shared memory: more than {} segments", kMaxSegments));
  constexpr std::size_t kUnit = std::size_t{1} << 20;
  const std::size_t bytes = std::max((at_least + kUnit - 1) / kUnit * kUnit, kFirstSegment << std::min(index, 6U));
  UniqueFd fd(::memfd_create("dtrun-comm", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) throw_errno("comm", "memfd_create");
  if (::ftruncate(fd.value(), static_cast<off_t>(bytes)) != 0)
    throw_errno("comm", fmt::format("a memfd of {} bytes", bytes));
  // The size is final: no peer can make an access of another one fail.
  if (::fcntl(fd.value(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    throw_errno("comm", "sealing a memfd");
  mappings_[index] = Mapping(fd.value(), bytes);
  fds_[index] = std::move(fd);
  free_.emplace(mappings_[index].data(), bytes);
  count_.store(index + 1, std::memory_order_release);
  if (index != 0) {
    own_header().segments[index] = {fds_[index].value(), bytes};
    own_header().count.store(index + 1, std::memory_order_release);
  }
}

std::byte* Pool::allocate(std::size_t bytes) {
  const std::size_t size = rounded(bytes);
  const std::lock_guard lock(mutex_);
  const auto fits = [size](const auto& block) { return block.second >= size; };
  auto found = std::find_if(free_.begin(), free_.end(), fits);
  if (found == free_.end()) {
    add_segment(size);
    found = std::find_if(free_.begin(), free_.end(), fits);
  }
  auto [data, available] = *found;
  free_.erase(found);
  if (available != size) free_.emplace(data + size, available - size);
  return data;
}

void Pool::release(std::byte* data, std::size_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  auto block = free_.emplace(data, rounded(bytes)).first;
  // Mappings of two segments may touch; a block never spans them.
  const auto joins = [this](const auto& left, const auto& right) {
    return left.first + left.second == right.first &&
           find(left.first, left.second + right.second).segment != kNoSegment;
  };
  if (const auto next = std::next(block); next != free_.end() && joins(*block, *next)) {
    block->second += next->second;
    free_.erase(next);
  }
  if (block == free_.begin()) return;
  if (const auto before = std::prev(block); joins(*before, *block)) {
    before->second += block->second;
    free_.erase(block);
  }
}

Place Pool::find(const std::byte* data, std::size_t bytes) const noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::uint32_t count = count_.load(std::memory_order_acquire);
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto base = reinterpret_cast<std::uintptr_t>(mappings_[i].data());
    if (address >= base && address - base <= mappings_[i].bytes() && bytes <= mappings_[i].bytes() - (address - base)) {
      return {i, address - base};
    }
  }
  return {};
}

}  // namespace dtrun::runtime::shm
