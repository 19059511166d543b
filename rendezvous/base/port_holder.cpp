#include "rendezvous/base/port_holder.hpp"

#include <dirent.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "rendezvous/base/small_file.hpp"

namespace dtrun {
namespace {

using File = std::unique_ptr<FILE, int (*)(FILE*)>;
using Directory = std::unique_ptr<DIR, int (*)(DIR*)>;

constexpr unsigned kListening = 0x0a;
constexpr std::size_t kLongestCommand = 80;

struct Socket {
  unsigned long inode = 0;  // 0: none found
  unsigned user = 0;
};

// A line of /proc/net/tcp: "sl: ADDRESS:PORT ADDRESS:PORT STATE queues timer retransmits UID timeout INODE ...".
Socket find_socket(const char* table, std::uint16_t port) {
  const File file(std::fopen(table, "re"), &std::fclose);
  std::array<char, 512> line{};
  Socket found;
  while (file && std::fgets(line.data(), line.size(), file.get()) != nullptr) {
    unsigned local = 0, state = 0, user = 0;
    unsigned long inode = 0;
    if (std::sscanf(line.data(), " %*u: %*[0-9A-Fa-f]:%x %*s %x %*s %*s %*s %u %*u %lu", &local, &state, &user,
                    &inode) != 4 ||
        local != port || inode == 0)
      continue;
    found = {inode, user};
    if (state == kListening) break;
  }
  return found;
}

// Calls visit(name) for the entries until it returns true.
template <class Visit>
bool any_entry(const std::string& path, Visit visit) {
  const Directory directory(::opendir(path.c_str()), &::closedir);
  while (directory) {
    const dirent* entry = ::readdir(directory.get());
    if (entry == nullptr) break;
    if (entry->d_name[0] != '.' && visit(entry->d_name)) return true;
  }
  return false;
}

bool holds(const std::string& process, const std::string& socket) {
  return any_entry(process + "/fd", [&](const char* name) {
    std::array<char, 64> target{};
    const auto size = ::readlink(fmt::format("{}/fd/{}", process, name).c_str(), target.data(), target.size());
    return size > 0 && std::string_view(target.data(), static_cast<std::size_t>(size)) == socket;
  });
}

// Arguments joined by blanks, what is not printable replaced, cut at a readable length.
std::string command_of(const std::string& process) {
  auto text = read_small_file(process + "/cmdline");
  while (!text.empty() && text.back() == '\0') text.pop_back();
  for (char& c : text) {
    if (c == '\0') c = ' ';
    if (c < ' ' || c > '~') c = '?';
  }
  if (text.size() > kLongestCommand) text.replace(kLongestCommand - 3, std::string::npos, "...");
  return text;
}

}  // namespace

std::string port_holder(std::uint16_t port) noexcept try {
  auto socket = find_socket("/proc/net/tcp", port);
  if (socket.inode == 0) socket = find_socket("/proc/net/tcp6", port);
  if (socket.inode == 0) return {};
  const auto link = fmt::format("socket:[{}]", socket.inode);
  std::string holder;
  any_entry("/proc", [&](const char* name) {
    const auto process = fmt::format("/proc/{}", name);
    if (name[0] < '0' || name[0] > '9' || !holds(process, link)) return false;
    holder = fmt::format("pid {} ({})", name, command_of(process));
    return true;
  });
  return holder.empty() ? fmt::format("a process of user {} that cannot be looked into", socket.user) : holder;
} catch (const std::exception&) {
  return {};
}

}  // namespace dtrun
