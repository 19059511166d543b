#include "worker_runtime/data/mapped_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>

#include "rendezvous/base/error.hpp"
#include "rendezvous/base/unique_fd.hpp"

namespace dtrun::runtime {

MappedFile map_file(const std::filesystem::path& path, std::string_view what) {
  const auto refuse = [&](std::string_view why) {
    return UsageError("data", fmt::format("{} \"{}\": {}", what, path.string(), why));
  };
  // O_NONBLOCK: opening a FIFO must not wait for a writer; the type is checked next.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) throw refuse(std::generic_category().message(errno));
  struct stat status {};
  if (::fstat(fd.value(), &status) != 0) throw refuse(std::generic_category().message(errno));
  if (S_ISDIR(status.st_mode)) throw refuse("is a directory, expected a file");
  if (!S_ISREG(status.st_mode)) throw refuse("is not a regular file");
  if (status.st_size == 0) throw refuse("is empty");
  const auto bytes = static_cast<std::size_t>(status.st_size);
  void* const address = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd.value(), 0);
  if (address == MAP_FAILED) throw refuse(fmt::format("cannot be mapped: {}", std::generic_category().message(errno)));
  MappedFile result;
  result.owner = std::shared_ptr<const void>(
      address, [bytes](const void* p) { static_cast<void>(::munmap(const_cast<void*>(p), bytes)); });
  result.data = static_cast<const std::byte*>(address);
  result.bytes = static_cast<std::int64_t>(bytes);
  return result;
}

}  // namespace dtrun::runtime
