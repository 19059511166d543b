#include "worker_runtime/comm/nccl/fake/segment.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <string>

#include "rendezvous/base/unique_fd.hpp"

namespace dtrun::runtime::nccl::fake {

namespace {

struct Kept {
  std::mutex mutex;
  std::map<std::uint64_t, UniqueFd> files;  // by cookie
};
Kept& kept() {
  static Kept all;
  return all;
}

std::size_t bytes_for(int size) {
  const auto n = static_cast<std::size_t>(size);
  return n * sizeof(RankBlock) + n * n * sizeof(Mailbox);
}

}  // namespace

Origin make_segment() {
  std::random_device random;
  const std::uint64_t cookie = (std::uint64_t{random()} << 32) | random() | 1;
  UniqueFd file(::memfd_create(fmt::format("dtrun-fake-nccl-{:x}", cookie).c_str(), MFD_CLOEXEC));
  if (file.value() < 0) return {};
  const Origin origin{::getpid(), file.value(), cookie};
  const std::lock_guard lock(kept().mutex);
  kept().files.emplace(cookie, std::move(file));
  return origin;
}

void forget_segment(const Origin& origin) {
  if (origin.pid != ::getpid()) return;
  const std::lock_guard lock(kept().mutex);
  kept().files.erase(origin.cookie);
}

std::size_t kept_segments() {
  const std::lock_guard lock(kept().mutex);
  return kept().files.size();
}

std::shared_ptr<Segment> Segment::open(const Origin& origin, int size) {
  const std::string path = fmt::format("/proc/{}/fd/{}", origin.pid, origin.fd);
  std::array<char, 128> target{};
  // Descriptors are used again: the name says whether it is the one.
  if (::readlink(path.c_str(), target.data(), target.size() - 1) < 0 ||
      std::string(target.data()).find(fmt::format("dtrun-fake-nccl-{:x}", origin.cookie)) == std::string::npos)
    return nullptr;
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (file.value() < 0) return nullptr;
  const std::size_t bytes = bytes_for(size);
  struct stat now {};
  if (::fstat(file.value(), &now) != 0) return nullptr;
  if (static_cast<std::size_t>(now.st_size) < bytes && ::ftruncate(file.value(), static_cast<off_t>(bytes)) != 0)
    return nullptr;
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file.value(), 0);
  if (base == MAP_FAILED) return nullptr;
  return std::shared_ptr<Segment>(new Segment(static_cast<std::byte*>(base), bytes, size));
}

Segment::~Segment() { ::munmap(base_, bytes_); }

// Fresh pages are zero, which is how every block begins.
RankBlock& Segment::rank(int rank) const { return reinterpret_cast<RankBlock*>(base_)[static_cast<std::size_t>(rank)]; }

Mailbox& Segment::mailbox(int from, int to) const {
  auto* boxes = reinterpret_cast<Mailbox*>(base_ + static_cast<std::size_t>(size_) * sizeof(RankBlock));
  return boxes[static_cast<std::size_t>(from * size_ + to)];
}

UniqueId id_of(const Origin& origin) {
  UniqueId id{};
  std::memcpy(id.bytes, &origin, sizeof origin);
  return id;
}

Origin origin_of(const UniqueId& id) {
  Origin origin;
  std::memcpy(&origin, id.bytes, sizeof origin);
  return origin;
}

bool process_lives(std::int32_t pid) {
  std::ifstream in(fmt::format("/proc/{}/stat", pid));
  std::string text;
  if (!std::getline(in, text)) return false;
  const auto name_end = text.rfind(')');
  return name_end == std::string::npos || text.compare(name_end, 3, ") Z") != 0;
}

}  // namespace dtrun::runtime::nccl::fake
