#include "launcher/agent/oom_counter.hpp"

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

}  // namespace

OomCounter::OomCounter(const std::string& membership, const std::string& root) {
  std::vector<std::string> candidates;
  const auto text = read_small_file(membership);
  for_each_line(text, [&](std::string_view line) {  // "4:memory:/path", "0::/path"
    const auto first = line.find(':');
    const auto second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) return;
    const auto controllers = line.substr(first + 1, second - first - 1);
    const std::string path(line.substr(second + 1));
    // In a container the path may be the host's; then the mount's root is our own cgroup.
    if (names_memory(controllers)) {
      candidates.push_back(root + "/memory" + path + "/memory.oom_control");
      candidates.push_back(root + "/memory/memory.oom_control");
    } else if (controllers.empty()) {
      candidates.push_back(root + path + "/memory.events");
      candidates.push_back(root + "/memory.events");
    }
  });
  for (const auto& path : candidates) {
    if (read_small_file(path).find("oom_kill ") == std::string::npos) continue;
    file_ = path;
    return;
  }
}

std::uint64_t OomCounter::read() const {
  std::uint64_t count = 0;
  if (file_.empty()) return count;
  constexpr std::string_view kKey = "oom_kill ";
  const auto text = read_small_file(file_);
  for_each_line(text, [&](std::string_view line) {
    if (line.starts_with(kKey)) std::from_chars(line.data() + kKey.size(), line.data() + line.size(), count);
  });
  return count;
}

}  // namespace dtrun::launcher
