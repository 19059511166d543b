#include "launcher/agent/memory_cgroup.hpp"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <vector>

#include "rendezvous/base/small_file.hpp"

namespace dtrun::launcher {
namespace {

template <class Take>
void for_each_line(std::string_view text, Take take) {
  while (!text.empty()) {
    const auto end = text.find('\n');
    take(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
}

bool names_memory(std::string_view controllers) {
  while (!controllers.empty()) {
    const auto end = controllers.find(',');
    if (controllers.substr(0, end) == "memory") return true;
    controllers.remove_prefix(end == std::string_view::npos ? controllers.size() : end + 1);
  }
  return false;
}

// A file with one number. v2 writes "max" where there is no limit, v1 a number that no machine has.
std::optional<std::uint64_t> read_number(const std::string& path) {
  const auto text = read_small_file(path);
  std::uint64_t value = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc()) return {};
  constexpr auto kNoLimit = std::uint64_t{1} << 60;
  return value < kNoLimit ? std::optional(value) : std::nullopt;
}

struct Place {
  bool v1;
  std::string mount;
  std::string path;
};

// In a container the path may be the host's; then the mount's root is our own cgroup.
std::vector<Place> candidate_places(std::string_view membership, const std::string& root) {
  std::vector<Place> places;
  for_each_line(membership, [&](std::string_view line) {  // "4:memory:/path", "0::/path"
    const auto first = line.find(':');
    const auto second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) return;
    const auto controllers = line.substr(first + 1, second - first - 1);
    const bool v1 = names_memory(controllers);
    if (!v1 && !controllers.empty()) return;
    for (const auto& path : {std::string(line.substr(second + 1)), std::string()})
      places.push_back({v1, v1 ? root + "/memory" : root, path == "/" ? "" : path});
  });
  return places;
}

}  // namespace

MemoryCgroup::MemoryCgroup(const std::string& membership, const std::string& root) {
  for (const auto& [v1, mount, path] : candidate_places(read_small_file(membership), root)) {
    const auto file = mount + path + (v1 ? "/memory.oom_control" : "/memory.events");
    if (read_small_file(file).find("oom_kill ") == std::string::npos) continue;
    v1_ = v1;
    mount_ = mount;
    directory_ = mount + path;
    events_ = file;
    return;
  }
}

std::uint64_t MemoryCgroup::oom_kills() const {
  std::uint64_t count = 0;
  if (events_.empty()) return count;
  constexpr std::string_view kKey = "oom_kill ";
  const auto text = read_small_file(events_);
  for_each_line(text, [&](std::string_view line) {
    if (line.starts_with(kKey)) std::from_chars(line.data() + kKey.size(), line.data() + line.size(), count);
  });
  return count;
}

std::uint64_t MemoryCgroup::unclaimed_oom_kills() const {
  const auto count = oom_kills();
  return count > accounted_ ? count - accounted_ : 0;
}

bool MemoryCgroup::claim_oom_kill() {
  if (unclaimed_oom_kills() == 0) return false;
  ++accounted_;
  return true;
}

std::optional<std::uint64_t> MemoryCgroup::limit() const {
  std::optional<std::uint64_t> tightest;
  for (auto at = directory_; at.size() >= mount_.size() && !at.empty(); at.resize(at.rfind('/'))) {
    const auto here = read_number(at + (v1_ ? "/memory.limit_in_bytes" : "/memory.max"));
    if (here) tightest = std::min(*here, tightest.value_or(*here));
  }
  return tightest;
}

std::optional<std::uint64_t> MemoryCgroup::peak() const {
  if (directory_.empty()) return {};
  return read_number(directory_ + (v1_ ? "/memory.max_usage_in_bytes" : "/memory.peak"));
}

}  // namespace dtrun::launcher
