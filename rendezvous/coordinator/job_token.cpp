#include "rendezvous/coordinator/job_token.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "rendezvous/base/error.hpp"
#include "rendezvous/base/unique_fd.hpp"
#include "rendezvous/coordinator/libcrypto.hpp"

namespace dtrun::rendezvous {
namespace {

constexpr std::size_t kMinBytes = 16, kMaxBytes = 4096;
constexpr std::size_t kMappedBytes = 8192;  // whole pages, with room to see that a file is too long

[[noreturn]] void refuse(const std::string& path, std::string_view why) {
  throw UsageError("token", fmt::format("the token file \"{}\" {}", path, why));
}

[[noreturn]] void refuse_errno(const std::string& path, int error) {
  refuse(path, fmt::format("cannot be read: {}", std::generic_category().message(error)));
}

UniqueFd open_private(const std::string& path) {
  // Whoever starts a program must not pass the file on; a named pipe must not hold us up.
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!fd) refuse_errno(path, errno);
  struct ::stat found {};
  if (::fstat(fd.value(), &found) != 0) refuse_errno(path, errno);
  if (!S_ISREG(found.st_mode)) refuse(path, "is no regular file");
  if (found.st_uid != 0 && found.st_uid != ::geteuid())
    refuse(path, fmt::format("belongs to user {}, expected this user or root", found.st_uid));
  if ((found.st_mode & 077) != 0)
    refuse(path,
           fmt::format("is open to others (mode {:04o}), expected 0600: chmod 600 {}", found.st_mode & 07777, path));
  return fd;
}

}  // namespace

// Memory of its own.
class JobToken::Secret {
 public:
  explicit Secret(const std::string& path) {
    const auto fd = open_private(path);
    memory_ = ::mmap(nullptr, kMappedBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) throw_errno("token", "memory");
    ::madvise(memory_, kMappedBytes, MADV_DONTDUMP);
    ::mlock(memory_, kMappedBytes);
    fill(fd.value(), path);
  }
  ~Secret() {
    ::explicit_bzero(memory_, kMappedBytes);
    ::munmap(memory_, kMappedBytes);
  }
  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;
  std::string_view bytes() const { return {static_cast<const char*>(memory_), size_}; }

 private:
  void fill(int fd, const std::string& path) {
    ssize_t n = 0;
    while (size_ < kMappedBytes && (n = ::read(fd, static_cast<char*>(memory_) + size_, kMappedBytes - size_)) != 0) {
      if (n < 0 && errno != EINTR) refuse_errno(path, errno);
      if (n > 0) size_ += static_cast<std::size_t>(n);
    }
    if (bytes().ends_with('\n')) size_ -= bytes().ends_with("\r\n") ? 2 : 1;
    if (size_ < kMinBytes || size_ > kMaxBytes)
      refuse(path, fmt::format("holds {} bytes, expected {} to {}",
                               size_ < kMinBytes ? std::to_string(size_) : "too many", kMinBytes, kMaxBytes));
  }

  void* memory_ = nullptr;
  std::size_t size_ = 0;
};

JobToken JobToken::read(const std::string& path) {
  libcrypto();
  return JobToken(std::make_shared<const Secret>(path));
}

Proof JobToken::sign(std::string_view text) const {
  Proof proof{};
  unsigned int size = 0;
  const auto key = secret_->bytes();
  const auto* done =
      libcrypto().hmac(libcrypto().sha256(), key.data(), static_cast<int>(key.size()),
                       reinterpret_cast<const unsigned char*>(text.data()), text.size(), proof.data(), &size);
  if (done == nullptr || size != proof.size()) throw RendezvousError("token", "libcrypto refuses HMAC-SHA256");
  return proof;
}

bool JobToken::signed_by(std::string_view text, const Proof& proof) const {
  const auto expected = sign(text);
  return libcrypto().compare(expected.data(), proof.data(), expected.size()) == 0;
}

}  // namespace dtrun::rendezvous
