#include "worker_runtime/device/fake/guarded_space.hpp"

#include <sys/mman.h>

#include <algorithm>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime::fake {
namespace {

// Rights of whole huge pages are changed a thousand times faster than those of small ones.
constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::size_t round_up(std::size_t bytes) { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }

// One for the process; -1 where there are none. A thread has no access unless it opens.
int protection_key() {
  static const int key = ::pkey_alloc(0, PKEY_DISABLE_ACCESS);
  return key;
}

thread_local int opened_by_key = 0;

}  // namespace

GuardedSpace::GuardedSpace(std::size_t bytes, bool keys) : size_(round_up(bytes) + kHugePage) {
  void* const mapped = ::mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw_errno("fake-cuda", "addresses of a device");
  data_ = static_cast<std::byte*>(mapped);
  // From a huge page on: what lies before it and behind the last one is not needed.
  const std::size_t before = kHugePage - reinterpret_cast<std::uintptr_t>(data_) % kHugePage;
  ::munmap(data_, before);
  data_ += before;
  size_ -= before;
  ::madvise(data_, size_, MADV_HUGEPAGE);
  ::madvise(data_, size_, MADV_DONTDUMP);
  has_keys_ =
      keys && protection_key() >= 0 && ::pkey_mprotect(data_, size_, PROT_READ | PROT_WRITE, protection_key()) == 0;
}

GuardedSpace::~GuardedSpace() { ::munmap(data_, size_); }

void GuardedSpace::open(std::size_t used) {
  if (has_keys_) {
    if (opened_by_key++ == 0) ::pkey_set(protection_key(), 0);
    return;
  }
  const std::size_t wanted = std::min(round_up(used), size_);
  if ((openers_++ == 0 || wanted > opened_) && wanted != 0) {
    if (::mprotect(data_, wanted, PROT_READ | PROT_WRITE) != 0) throw_errno("fake-cuda", "opening memory of a device");
    opened_ = std::max(opened_, wanted);
  }
}

void GuardedSpace::close() {
  if (has_keys_) {
    if (--opened_by_key == 0) ::pkey_set(protection_key(), PKEY_DISABLE_ACCESS);
  } else if (--openers_ == 0 && opened_ != 0) {
    ::mprotect(data_, opened_, PROT_NONE);
  }
}

}  // namespace dtrun::runtime::fake
