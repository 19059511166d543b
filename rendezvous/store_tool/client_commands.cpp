#include <fmt/format.h>

#include <cstdio>
#include <map>
#include <thread>

#include "rendezvous/base/error.hpp"
#include "rendezvous/client/tcp_store.hpp"
#include "rendezvous/store/key_text.hpp"
#include "rendezvous/store_tool/commands.hpp"

namespace dtrun::rendezvous {
namespace {

TcpStore connect(const ClientCommand& command) {
  return TcpStore({command.endpoint.host, command.endpoint.port, command.timeout, std::nullopt});
}

void write(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

}  // namespace

// The bytes as they are, so that values can be piped.
int print_value(const ClientCommand& command, const std::string& key) {
  auto store = connect(command);
  write(store.get(key, command.timeout));
  return 0;
}

int set_value(const ClientCommand& command, const std::string& key, const std::string& value) {
  auto store = connect(command);
  store.set(key, value);
  // SET has no answer: an answered request after it tells that it has arrived.
  store.num_keys();
  return 0;
}

int add_to(const ClientCommand& command, const std::string& key, std::int64_t delta) {
  auto store = connect(command);
  fmt::print("{}\n", store.add(key, delta));
  return 0;
}

int list_keys(const ClientCommand& command) {
  auto store = connect(command);
  for (const auto& key : store.list_keys()) write(quoted(key) + "\n");
  return 0;
}

int watch(const ClientCommand& command, const std::vector<std::string>& keys, std::chrono::milliseconds interval,
          std::int64_t changes) {
  auto store = connect(command);
  std::map<std::string, std::string> seen;
  for (std::int64_t printed = 0;; std::this_thread::sleep_for(interval)) {
    std::map<std::string, std::string> now;
    for (const auto& key : keys.empty() ? store.list_keys() : keys) {
      // The key may go between the two requests; a value read then is empty.
      if (store.check({&key, 1})) now[key] = store.get(key, command.timeout);
    }
    const auto line = [&](const std::string& text) {
      write(text + "\n");
      std::fflush(stdout);
      return changes > 0 && ++printed >= changes;
    };
    for (const auto& [key, value] : now) {
      const auto before = seen.find(key);
      if (before != seen.end() && before->second == value) continue;
      if (line(fmt::format("{} = {}", quoted(key), quoted(value)))) return 0;
    }
    for (const auto& [key, value] : seen) {
      if (!now.contains(key) && line(fmt::format("{} deleted", quoted(key)))) return 0;
    }
    seen.swap(now);
  }
}

}  // namespace dtrun::rendezvous
