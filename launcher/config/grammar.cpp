#include "launcher/config/grammar.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <string.h>

#include <charconv>
#include <cmath>
#include <limits>

#include "rendezvous/base/error.hpp"

namespace dtrun::launcher {
namespace {

constexpr std::string_view kBlank = " \t\r\n\v\f";

std::string_view strip(std::string_view text) {
  const auto begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

[[noreturn]] void refuse(std::string_view label, std::string_view text, std::string_view expected) {
  throw UsageError("cli", fmt::format("{} is \"{}\", expected {}", label, text, expected));
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::optional<int> to_integer(std::string_view text) {
  auto rest = strip(text);
  std::string digits;
  if (rest.starts_with('+') || rest.starts_with('-')) {
    if (rest.front() == '-') digits = "-";
    rest.remove_prefix(1);
  }
  bool digit_before = false;
  for (std::size_t i = 0; i < rest.size(); ++i) {
    if (is_digit(rest[i])) {
      digits += rest[i];
    } else if (rest[i] != '_' || !digit_before || i + 1 == rest.size()) {
      return std::nullopt;
    }
    digit_before = is_digit(rest[i]);
  }
  int value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

}  // namespace

int parse_integer(std::string_view label, std::string_view text) {
  const auto value = to_integer(text);
  if (!value) refuse(label, text, "an integer");
  return *value;
}

double parse_number(std::string_view label, std::string_view text) {
  auto body = strip(text);
  if (body.starts_with('+')) body.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(body.data(), body.data() + body.size(), value);
  if (error != std::errc() || end != body.data() + body.size() || !std::isfinite(value))
    refuse(label, text, "a number");
  return value;
}

NodeRange parse_nodes(std::string_view label, std::string_view text) {
  const auto parts = split(text, ':');
  const auto min = to_integer(parts.front());
  const auto max = to_integer(parts.back());
  if (parts.size() > 2 || !min || !max || *min <= 0 || *min > *max) {
    refuse(label, text, "a number of nodes N, or MIN:MAX with 0 < MIN <= MAX");
  }
  return {*min, *max};
}

ProcessCount parse_process_count(std::string_view label, std::string_view text) {
  using Kind = ProcessCount::Kind;
  if (text == "auto") return {Kind::automatic, 0};
  if (text == "cpu") return {Kind::cpu, 0};
  if (text == "gpu") return {Kind::gpu, 0};
  const auto number = to_integer(text);
  if (!number || *number <= 0) refuse(label, text, "a number of workers above 0, or auto, cpu or gpu");
  return {Kind::number, *number};
}

StreamRule parse_stream_rule(std::string_view label, std::string_view text) {
  constexpr auto kExpected = "0 (none), 1 (stdout), 2 (stderr) or 3 (both) for every rank, or RANK:0-3[,RANK:0-3...]";
  const auto value_of = [&](std::string_view one) {
    if (one.size() != 1 || one[0] < '0' || one[0] > '3') refuse(label, text, kExpected);
    return static_cast<std::uint8_t>(one[0] - '0');
  };
  StreamRule rule;
  if (text.find(':') == std::string_view::npos) {
    rule.everyone = value_of(text);
    return rule;
  }
  for (const auto item : split(text, ',')) {
    const auto colon = item.find(':');
    int rank = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + std::min(colon, item.size()), rank);
    if (colon == std::string_view::npos || error != std::errc() || end != item.data() + colon || rank < 0) {
      refuse(label, text, kExpected);
    }
    rule.by_rank[rank] = value_of(item.substr(colon + 1));
  }
  return rule;
}

std::map<std::string, std::string> parse_conf(std::string_view label, std::string_view text) {
  std::map<std::string, std::string> conf;
  if (strip(text).empty()) return conf;
  for (const auto item : split(text, ',')) {
    const auto equals = item.find('=');
    const auto key = strip(item.substr(0, equals));
    const auto value = equals == std::string_view::npos ? std::string_view() : strip(item.substr(equals + 1));
    if (key.empty() || value.empty()) refuse(label, text, "key=value[,key=value...]");
    conf[std::string(key)] = value;
  }
  return conf;
}

std::vector<std::string> parse_filters(std::string_view text) {
  std::vector<std::string> needles;
  if (text.empty()) return needles;
  needles.emplace_back();
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ',') {
      needles.back() += text[i];
    } else if (i + 1 < text.size() && text[i + 1] == ',') {
      needles.back() += ',';
      ++i;
    } else {
      needles.emplace_back();
    }
  }
  return needles;
}

std::vector<int> parse_ranks(std::string_view label, std::string_view text) {
  std::vector<int> ranks;
  if (strip(text).empty()) return ranks;
  for (const auto item : split(text, ',')) {
    const auto rank = to_integer(item);
    if (!rank) refuse(label, text, "local ranks separated by commas, such as 0,3");
    ranks.push_back(*rank);
  }
  return ranks;
}

SignalList parse_signals(std::string_view text) {
  SignalList list;
  for (const auto item : split(text, ',')) {
    const auto name = strip(item);
    if (name.empty()) continue;
    int found = 0;
    for (int number = 1; number < 32 && found == 0 && name.starts_with("SIG"); ++number) {
      const char* known = ::sigabbrev_np(number);
      if (known != nullptr && name.substr(3) == known) found = number;
    }
    if (found != 0) {
      list.known.push_back(found);
    } else {
      list.unknown.emplace_back(name);
    }
  }
  return list;
}

}  // namespace dtrun::launcher
