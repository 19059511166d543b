// The commands of dtrun-store. Each prints to stdout and returns the exit code; failures are exceptions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rendezvous/base/clock.hpp"
#include "rendezvous/base/endpoint.hpp"

namespace dtrun::rendezvous {

struct ClientCommand {
  Endpoint endpoint;
  std::chrono::milliseconds timeout = std::chrono::seconds(10);
};

// Until SIGINT or SIGTERM.
int serve(const std::string& host, std::uint16_t port, bool serve_1x);
int print_value(const ClientCommand& command, const std::string& key);
int set_value(const ClientCommand& command, const std::string& key, const std::string& value);
int add_to(const ClientCommand& command, const std::string& key, std::int64_t delta);
int list_keys(const ClientCommand& command);
// Prints each value as it is seen to change; no keys given: all. Ends after `changes` lines (0: never) or when the
// server goes away.
int watch(const ClientCommand& command, const std::vector<std::string>& keys, std::chrono::milliseconds interval,
          std::int64_t changes);

}  // namespace dtrun::rendezvous
