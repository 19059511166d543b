#include "worker_runtime/ops/workspace.hpp"

#include <atomic>
#include <new>

namespace dtrun::runtime::ops {
namespace {

constexpr std::align_val_t kAlignment{64};
std::atomic<std::size_t> total_bytes{0};

class Block {
 public:
  Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() { release(); }

  float* at_least(std::size_t bytes) {
    if (bytes > bytes_) {
      release();
      data_ = static_cast<float*>(::operator new(bytes, kAlignment));
      bytes_ = bytes;
      total_bytes.fetch_add(bytes, std::memory_order_relaxed);
    }
    return data_;
  }

 private:
  void release() noexcept {
    if (data_ != nullptr) ::operator delete(data_, kAlignment);
    total_bytes.fetch_sub(bytes_, std::memory_order_relaxed);
    data_ = nullptr;
    bytes_ = 0;
  }

  float* data_ = nullptr;
  std::size_t bytes_ = 0;
};

thread_local Block blocks[4];

}  // namespace

float* workspace(Scratch purpose, std::int64_t floats) {
  return blocks[static_cast<std::size_t>(purpose)].at_least((static_cast<std::size_t>(floats) * sizeof(float) + 64) /
                                                            64 * 64);
}

std::size_t workspace_bytes() noexcept { return total_bytes.load(std::memory_order_relaxed); }

}  // namespace dtrun::runtime::ops
