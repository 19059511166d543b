#include "launcher/agent/machine.hpp"

#include <dirent.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <vector>

#include "rendezvous/base/env.hpp"
#include "rendezvous/base/error.hpp"

namespace dtrun::launcher {
namespace {

template <class Matches>
int count_entries(const char* directory, Matches matches) {
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(directory), &::closedir);
  int count = 0;
  while (entries) {
    const dirent* entry = ::readdir(entries.get());
    if (entry == nullptr) break;
    if (matches(std::string_view(entry->d_name))) ++count;
  }
  return count;
}

std::array<unsigned char, 16> random_bytes() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw_errno("launcher", "getrandom");
  return bytes;
}

}  // namespace

std::set<int> allowed_cpus() {
  std::set<int> cpus;
  // The kernel refuses a mask smaller than its own: grow until it fits.
  for (std::size_t bits = 1024; bits <= (std::size_t{1} << 20); bits *= 2) {
    std::vector<unsigned long> mask(bits / (8 * sizeof(unsigned long)));
    auto* set = reinterpret_cast<cpu_set_t*>(mask.data());
    if (::sched_getaffinity(0, bits / 8, set) == 0) {
      for (std::size_t cpu = 0; cpu < bits; ++cpu) {
        if (CPU_ISSET_S(cpu, bits / 8, set)) cpus.insert(static_cast<int>(cpu));
      }
      return cpus;
    }
    if (errno != EINVAL) break;
  }
  for (long cpu = 0; cpu < ::sysconf(_SC_NPROCESSORS_ONLN); ++cpu) cpus.insert(static_cast<int>(cpu));
  return cpus;
}

int allowed_cores() { return std::max(1, static_cast<int>(allowed_cpus().size())); }

int gpu_devices() {
  const int listed =
      count_entries("/proc/driver/nvidia/gpus", [](std::string_view name) { return name.front() != '.'; });
  if (listed > 0) return listed;
  return count_entries("/dev", [](std::string_view name) {
    return name.size() > 6 && name.starts_with("nvidia") &&
           name.find_first_not_of("0123456789", 6) == std::string_view::npos;
  });
}

int visible_gpus(int devices, const std::optional<std::string>& list) {
  if (!list) return devices;
  int count = 0;
  std::string_view rest = *list;
  while (count < devices) {
    const auto comma = rest.find(',');
    auto entry = rest.substr(0, comma);
    while (entry.starts_with(' ')) entry.remove_prefix(1);
    while (entry.ends_with(' ')) entry.remove_suffix(1);
    const auto index = env::parse_int(entry);
    const bool by_name = entry.starts_with("GPU-") || entry.starts_with("MIG-");
    if (!by_name && (!index || *index < 0 || *index >= devices)) break;
    ++count;
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  return count;
}

// Descriptors per worker: pidfd, two pipes, two log files, snapshot memory, and the write ends during the start. A
// worker may get one of a fixed number.
void allow_descriptors(int workers) {
  rlimit limit{};
  const auto wanted = static_cast<rlim_t>(workers) * 7 + 128;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

std::string limit_hint(int error) {
  if (error == EMFILE) return " (\"ulimit -n\", the limit of open files, is reached; a rank needs up to 7)";
  if (error == ENFILE) return " (the machine's limit of open files is reached)";
  if (error == EAGAIN) return " (\"ulimit -u\", the limit of processes, or that of the container is reached)";
  return {};
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  return name.data();
}

std::string random_uuid() {
  auto bytes = random_bytes();
  bytes[6] = static_cast<unsigned char>((bytes[6] & 0x0f) | 0x40);
  bytes[8] = static_cast<unsigned char>((bytes[8] & 0x3f) | 0x80);
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", bytes[i]);
  }
  return text;
}

std::string random_decimal() {
  auto bytes = random_bytes();
  std::string digits;
  for (bool left = true; left;) {  // long division by 10
    unsigned remainder = 0;
    left = false;
    for (auto& byte : bytes) {
      const unsigned value = remainder * 256 + byte;
      byte = static_cast<unsigned char>(value / 10);
      remainder = value % 10;
      left = left || byte != 0;
    }
    digits += static_cast<char>('0' + remainder);
  }
  std::reverse(digits.begin(), digits.end());
  return digits;
}

int resolve_process_count(const ProcessCount& wanted) {
  using Kind = ProcessCount::Kind;
  if (wanted.kind == Kind::number) return wanted.number;
  if (wanted.kind == Kind::cpu) return allowed_cores();
  const int devices = gpu_devices();
  const int gpus = visible_gpus(devices, env::get("CUDA_VISIBLE_DEVICES"));
  if (gpus > 0) return gpus;
  if (wanted.kind == Kind::automatic) return allowed_cores();
  throw UsageError(
      "cli",
      fmt::format(
          "--nproc-per-node is \"gpu\", but no GPU is to be seen: the driver shows {}, CUDA_VISIBLE_DEVICES is {}",
          devices, env::get("CUDA_VISIBLE_DEVICES") ? "\"" + *env::get("CUDA_VISIBLE_DEVICES") + "\"" : "not set"));
}

}  // namespace dtrun::launcher
