#include "worker_runtime/worker/memory_snapshot.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/checkpoint/hash.hpp"

namespace dtrun::runtime {
namespace {

constexpr std::uint64_t kMagic = 0x31504e5352545244;  // "DRTRSNP1"
constexpr std::uint64_t kPage = 4096;
constexpr std::int64_t kVoid = -1;

std::uint64_t pages(std::uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

std::uint64_t hash_of_layout(std::span<const StatePiece> pieces, int rank, int world) {
  std::string text = fmt::format("{} of {}", rank, world);
  for (const auto& piece : pieces) {
    const auto& at = piece.where;
    text += fmt::format("\n{} {} {} {} {} {} {}", piece.name, piece.shape.to_string(), at.first, at.row_length,
                        at.row_stride, at.skip, piece.tensor.numel());
  }
  return hash_bytes(std::as_bytes(std::span(text)));
}

}  // namespace

struct MemorySnapshot::Head {
  std::uint64_t magic, layout, slot_bytes;
};

struct MemorySnapshot::SlotHead {
  std::atomic<std::int64_t> step;
  std::uint64_t text_bytes;
  char text[kLongestText];
};

MemorySnapshot::MemorySnapshot(UniqueFd memory, std::span<const StatePiece> pieces, int rank, int world)
    : memory_(std::move(memory)), layout_(hash_of_layout(pieces, rank, world)) {
  static_assert(std::atomic<std::int64_t>::is_always_lock_free);
  slot_bytes_ = pages(sizeof(SlotHead));
  for (const auto& piece : pieces) slot_bytes_ += piece.tensor.bytes();
  slot_bytes_ = pages(slot_bytes_);
  struct stat status {};
  if (::fstat(memory_.value(), &status) != 0) throw_errno("worker", "fstat of the snapshot memory");
  if (static_cast<std::uint64_t>(status.st_size) == kPage + bytes()) map(false);
}

MemorySnapshot::~MemorySnapshot() {
  if (mapped_ != nullptr) ::munmap(mapped_, kPage + bytes());
}

// Memory that was not taken before it is written would be a SIGBUS there.
void MemorySnapshot::map(bool fresh) {
  const auto size = kPage + bytes();
  if (fresh) {
    if (::ftruncate(memory_.value(), 0) != 0) throw_errno("worker", "ftruncate of the snapshot memory");
    if (const int error = ::posix_fallocate(memory_.value(), 0, static_cast<off_t>(size)); error != 0) {
      static_cast<void>(::ftruncate(memory_.value(), 0));
      errno = error;
      throw_errno("worker", fmt::format("{} bytes of snapshot memory", size));
    }
  }
  void* const address = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, memory_.value(), 0);
  if (address == MAP_FAILED) throw_errno("worker", "mmap of the snapshot memory");
  mapped_ = static_cast<std::byte*>(address);
  auto& head = *reinterpret_cast<Head*>(mapped_);
  if (fresh) {
    for (const int index : {0, 1}) slot(index).step.store(kVoid);
    head = {kMagic, layout_, slot_bytes_};
  } else if (head.magic != kMagic || head.layout != layout_ || head.slot_bytes != slot_bytes_) {
    ::munmap(std::exchange(mapped_, nullptr), size);
  }
}

MemorySnapshot::SlotHead& MemorySnapshot::slot(int index) const {
  return *reinterpret_cast<SlotHead*>(mapped_ + kPage + static_cast<std::uint64_t>(index) * slot_bytes_);
}

std::byte* MemorySnapshot::data_of(SlotHead& slot) const {
  return reinterpret_cast<std::byte*>(&slot) + pages(sizeof(SlotHead));
}

std::vector<std::int64_t> MemorySnapshot::steps() const {
  std::vector<std::int64_t> result;
  for (int index = 0; mapped_ != nullptr && index < 2; ++index) {
    if (const auto step = slot(index).step.load(); step != kVoid) result.push_back(step);
  }
  std::ranges::sort(result, std::greater<>());
  return result;
}

void MemorySnapshot::write(std::int64_t step, const std::string& run, std::span<const StatePiece> pieces) {
  if (run.size() > kLongestText)
    throw Error("worker",
                fmt::format("the description of the run has {} bytes, more than a snapshot holds", run.size()));
  if (mapped_ == nullptr) map(true);
  auto& to = slot(slot(0).step.load() <= slot(1).step.load() ? 0 : 1);
  to.step.store(kVoid);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::memcpy(to.text, run.data(), run.size());
  to.text_bytes = run.size();
  std::byte* at = data_of(to);
  for (const auto& piece : pieces) {
    const Tensor here = piece.tensor.to_host();
    std::memcpy(at, here.raw(), here.bytes());
    at += here.bytes();
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  to.step.store(step);
}

void MemorySnapshot::clear() {
  for (int index = 0; mapped_ != nullptr && index < 2; ++index) slot(index).step.store(kVoid);
}

MemorySnapshot::SlotHead& MemorySnapshot::slot_of(std::int64_t step) const {
  DTRUN_ASSERT(mapped_ != nullptr);
  auto& found = slot(slot(0).step.load() == step ? 0 : 1);
  DTRUN_ASSERT(found.step.load() == step && found.text_bytes <= kLongestText);
  return found;
}

std::string MemorySnapshot::text_of(std::int64_t step) const {
  const auto& from = slot_of(step);
  return std::string(from.text, from.text_bytes);
}

void MemorySnapshot::read(std::int64_t step, std::span<const StatePiece> pieces) const {
  const std::byte* at = data_of(slot_of(step));
  for (const auto& piece : pieces) {
    const bool on_device = piece.tensor.device() != nullptr;
    const Tensor here = on_device ? Tensor::on_host(piece.tensor.shape(), piece.tensor.dtype()) : piece.tensor;
    std::memcpy(here.raw(), at, here.bytes());
    if (on_device) piece.tensor.copy_from(here);
    at += here.bytes();
  }
}

}  // namespace dtrun::runtime
