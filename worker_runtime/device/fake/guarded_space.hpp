// Addresses that cannot be touched except while they are open.
#pragma once

#include <cstddef>

namespace dtrun::runtime::fake {

// Reserved, not held: pages come with their first use. Guarded by the lock of FakeCuda. With protection keys (x86) they
// open for the calling thread and at no cost; without, by page rights, for every thread. Throws SystemError.
class GuardedSpace {
 public:
  // `keys`: use them where the machine has them.
  GuardedSpace(std::size_t bytes, bool keys);
  GuardedSpace(const GuardedSpace&) = delete;
  GuardedSpace& operator=(const GuardedSpace&) = delete;
  ~GuardedSpace();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  bool has_keys() const { return has_keys_; }
  // Calls nest; close() by the thread that opened. The first `used` bytes at least.
  void open(std::size_t used);
  void close();

 private:
  std::byte* data_ = nullptr;
  std::size_t size_;
  bool has_keys_ = false;
  int openers_ = 0;         // without keys
  std::size_t opened_ = 0;  // bytes whose pages are open now, or were last
};

}  // namespace dtrun::runtime::fake
