#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/comm/nccl/fake/fake_nccl.hpp"

namespace dtrun::runtime::nccl::fake {

namespace {

std::vector<std::string> cut(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const auto end = std::min(text.find(separator), text.size());
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

[[noreturn]] void refuse(std::string_view what) {
  throw UsageError("comm", fmt::format("DTRUN_FAKE_NCCL: \"{}\", expected for example "
                                       "version=22809,init_polls=1,fault=never_ends/reduce/1/3",
                                       what));
}

template <class Number>
Number number(const std::string& text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) refuse(text);
  return value;
}

Fault fault_of(const std::string& text) {
  static const std::map<std::string, FaultKind> kKinds{{"remote_error", FaultKind::remote_error},
                                                       {"never_ends", FaultKind::never_ends},
                                                       {"init_hangs", FaultKind::init_hangs},
                                                       {"abort_hangs", FaultKind::abort_hangs}};
  const auto parts = cut(text, '/');
  if (parts.empty() || !kKinds.contains(parts[0])) refuse(text);
  Fault fault{.kind = kKinds.at(parts[0])};
  if (parts.size() > 1) fault.communicator = parts[1];
  if (parts.size() > 2) fault.rank = number<int>(parts[2]);
  if (parts.size() > 3) fault.operation = number<std::uint64_t>(parts[3]);
  return fault;
}

}  // namespace

FakeNcclConfig FakeNcclConfig::parse(std::string_view text) {
  FakeNcclConfig config;
  for (const std::string& item : cut(text, ',')) {
    const auto equals = item.find('=');
    if (equals == std::string::npos) refuse(item);
    const std::string key = item.substr(0, equals), value = item.substr(equals + 1);
    if (key == "version") {
      config.version = number<int>(value);
    } else if (key == "init_polls") {
      config.init_polls = number<int>(value);
    } else if (key == "launch_polls") {
      config.launch_polls = number<int>(value);
    } else if ((key == "split" || key == "memory") && (value == "on" || value == "off")) {
      (key == "split" ? config.has_split : config.has_memory) = value == "on";
    } else if (key == "fault") {
      config.faults.push_back(fault_of(value));
    } else {
      refuse(item);
    }
  }
  return config;
}

FakeNcclConfig FakeNcclConfig::from_environment() {
  const char* text = std::getenv("DTRUN_FAKE_NCCL");
  return parse(text == nullptr ? "" : text);
}

}  // namespace dtrun::runtime::nccl::fake
