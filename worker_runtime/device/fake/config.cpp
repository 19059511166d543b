// The text of DTRUN_FAKE_CUDA.
#include <fmt/format.h>

#include <charconv>
#include <cstdlib>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/device/fake/fake_cuda.hpp"

namespace dtrun::runtime::fake {
namespace {

[[noreturn]] void refuse(std::string_view key, std::string_view value, std::string_view expected) {
  throw UsageError("fake-cuda", fmt::format("DTRUN_FAKE_CUDA: {}=\"{}\", expected {}", key, value, expected));
}

// The number at the beginning of `value`, which it leaves.
template <class T>
T take_number(std::string_view key, std::string_view& value, std::string_view expected, T least) {
  T number{};
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc{} || number < least) refuse(key, value, expected);
  value.remove_prefix(static_cast<std::size_t>(end - value.data()));
  return number;
}

template <class T>
T whole_number(std::string_view key, std::string_view value, T least) {
  const auto expected = fmt::format("a whole number >= {}", least);
  std::string_view rest = value;
  const T number = take_number<T>(key, rest, expected, least);
  if (!rest.empty()) refuse(key, value, expected);
  return number;
}

std::size_t bytes_of(std::string_view key, std::string_view value) {
  constexpr std::string_view kExpected = "a number with KiB, MiB or GiB";
  std::string_view unit = value;
  const auto number = take_number<std::size_t>(key, unit, kExpected, 1);
  const int shift = unit == "KiB" ? 10 : unit == "MiB" ? 20 : unit == "GiB" ? 30 : 0;
  if (shift == 0 || number > (std::size_t{1} << 44) >> shift) refuse(key, value, kExpected);
  return number << shift;
}

void set_strategy(FakeCudaConfig& config, std::string_view value) {
  if (value == "random") {
    config.strategy = Strategy::random;
  } else if (value == "fifo") {
    config.strategy = Strategy::fifo;
  } else if (value == "late") {
    config.strategy = Strategy::late;
  } else if (value.starts_with("starve:")) {
    config.strategy = Strategy::starve;
    config.starved = whole_number("strategy=starve", value.substr(7), 0);
  } else {
    refuse("strategy", value, "random, fifo, late or starve:N");
  }
}

void set(FakeCudaConfig& config, std::string_view key, std::string_view value) {
  if (key == "devices") {
    config.devices = whole_number(key, value, 0);
    if (config.devices > 64) refuse(key, value, "at most 64");
  } else if (key == "memory") {
    config.memory_bytes = bytes_of(key, value);
  } else if (key == "seed") {
    config.seed = whole_number<std::uint64_t>(key, value, 0);
  } else if (key == "strategy") {
    set_strategy(config, value);
  } else if (key == "races") {
    if (value != "on" && value != "off") refuse(key, value, "on or off");
    config.check_races = value == "on";
  } else if (key == "free") {
    if (value != "strict" && value != "waits") refuse(key, value, "strict or waits");
    config.strict_free = value == "strict";
  } else if (key == "capability") {
    const auto dot = value.find('.');
    if (dot == std::string_view::npos) refuse(key, value, "MAJOR.MINOR");
    config.major = whole_number(key, value.substr(0, dot), 1);
    config.minor = whole_number(key, value.substr(dot + 1), 0);
  } else {
    refuse(key, value, "one of devices, memory, seed, strategy, races, free, capability");
  }
}

}  // namespace

FakeCudaConfig FakeCudaConfig::parse(std::string_view text) {
  FakeCudaConfig config;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const auto equals = item.find('=');
    if (equals == std::string_view::npos)
      throw UsageError("fake-cuda", fmt::format("DTRUN_FAKE_CUDA: \"{}\", expected KEY=VALUE", item));
    set(config, item.substr(0, equals), item.substr(equals + 1));
  }
  return config;
}

FakeCudaConfig FakeCudaConfig::from_environment() {
  const char* const text = std::getenv("DTRUN_FAKE_CUDA");
  return parse(text != nullptr ? text : "");
}

}  // namespace dtrun::runtime::fake
