#include "worker_runtime/comm/shm/peer.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime::shm {

namespace {

std::string link_target(const char* path) {
  std::array<char, 128> text{};
  const auto length = ::readlink(path, text.data(), text.size() - 1);
  return length > 0 ? std::string(text.data(), static_cast<std::size_t>(length)) : std::string("?");
}

std::string host_identity() {
  std::string boot = "?";
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return fmt::format("{}/{}/{}", boot, link_target("/proc/self/ns/pid"), ::getuid());
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0' ? std::string(name.data())
                                                                             : std::string("?");
}

}  // namespace

namespace {

std::vector<int> usable_cores() {
  cpu_set_t set;
  std::vector<int> cores;
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return {0};
  for (unsigned core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(static_cast<int>(core));
  }
  return cores;
}

}  // namespace

Address Address::of(const Pool& pool, const Place& control) {
  const PoolHeader& header = pool.header();
  return {.pid = ::getpid(),
          .fd = header.segments[0].fd,
          .bytes = header.segments[0].bytes,
          .token = header.token,
          .control = control,
          .host = host_identity(),
          .host_name = shm::host_name(),
          .cores = usable_cores()};
}

std::string Address::encode() const {
  return fmt::format("dtrun-shm-1 {} {} {} {} {} {} {} {} {} {}", pid, fd, bytes, token[0], token[1], control.segment,
                     control.offset, host, host_name, fmt::join(cores, " "));
}

Address Address::decode(std::string_view text) {
  std::istringstream in{std::string(text)};
  std::string kind;
  Address result;
  in >> kind >> result.pid >> result.fd >> result.bytes >> result.token[0] >> result.token[1] >>
      result.control.segment >> result.control.offset >> result.host >> result.host_name;
  if (!in || kind != "dtrun-shm-1")
    throw CommError("comm", fmt::format("address of a rank: \"{}\", expected dtrun-shm-1 ...", text));
  for (int core = 0; in >> core;) result.cores.push_back(core);
  return result;
}

Peer::Peer(int rank, const Address& address) : rank_(rank), pid_(address.pid) {
  if (pid_ == ::getpid()) same_process_ = Pool::find_in_process(address.token);
  if (same_process_) {
    header_ = &same_process_->header();
    return;
  }
  // Order matters: the pidfd first, then the memory, whose token proves that this process is the one that wrote the
  // address.
  pidfd_.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  if (!pidfd_ && errno != ENOSYS && errno != EPERM) {
    throw CommError("comm",
                    fmt::format("rank {} (pid {}) is gone: {}", rank, pid_, std::generic_category().message(errno)));
  }
  mappings_.emplace_back(open(address.fd).value(), address.bytes);
  header_ = reinterpret_cast<const PoolHeader*>(mappings_.back().data());
  if (address.bytes < sizeof(PoolHeader) || header_->magic != PoolHeader::kMagic || header_->token != address.token) {
    throw CommError("comm", fmt::format("pid {} is not rank {} any more", pid_, rank));
  }
  bases_[0].store(mappings_.back().data(), std::memory_order_release);
}

UniqueFd Peer::open(int fd) const {
  const std::string path = fmt::format("/proc/{}/fd/{}", pid_, fd);
  UniqueFd result(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!result) {
    throw CommError(
        "comm",
        fmt::format("shared memory of rank {}: cannot open {} ({}); expected a running process of the same user", rank_,
                    path, std::generic_category().message(errno)));
  }
  return result;
}

bool Peer::dead() const noexcept {
  if (same_process_) return false;
  if (!pidfd_) return ::kill(pid_, 0) != 0 && errno == ESRCH;
  pollfd query{pidfd_.value(), POLLIN, 0};
  return ::poll(&query, 1, 0) == 1;
}

std::byte* Peer::at(const Place& place, std::size_t bytes) {
  const std::uint32_t count = header_->count.load(std::memory_order_acquire);
  if (place.segment >= count || place.offset > header_->segments[place.segment].bytes ||
      bytes > header_->segments[place.segment].bytes - place.offset) {
    throw CommError("comm", fmt::format("rank {}: no {} bytes at {}:{} of its shared memory", rank_, bytes,
                                        place.segment, place.offset));
  }
  if (same_process_) return same_process_->at(place);
  std::byte* base = bases_[place.segment].load(std::memory_order_acquire);
  return (base != nullptr ? base : map(place.segment)) + place.offset;
}

std::byte* Peer::map(std::uint32_t segment) {
  const std::lock_guard lock(mutex_);
  if (std::byte* base = bases_[segment].load(std::memory_order_relaxed)) return base;
  mappings_.emplace_back(open(header_->segments[segment].fd).value(), header_->segments[segment].bytes);
  bases_[segment].store(mappings_.back().data(), std::memory_order_release);
  return mappings_.back().data();
}

}  // namespace dtrun::runtime::shm
