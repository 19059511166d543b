#include "launcher/config/hostlist.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>

#include "rendezvous/base/error.hpp"

namespace dtrun::launcher {
namespace {

constexpr std::size_t kLongestName = 255;  // of DNS
constexpr std::size_t kMostDigits = 12;
constexpr std::size_t kShown = 80;

bool is_name_character(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '.' || c == '_';
}

class Expansion {
 public:
  Expansion(std::string_view label, std::string_view text) : label_(label), text_(text) {}

  std::vector<std::string> all() {
    std::vector<std::string> hosts;
    do {
      auto names = entry();
      if (hosts.size() + names.size() > kMostHosts) too_many();
      for (auto& name : names) hosts.push_back(std::move(name));
    } while (take(','));
    return hosts;
  }

 private:
  // One name with its brackets, up to a comma outside of them.
  std::vector<std::string> entry() {
    std::vector<std::string> names = {""};
    const auto begin = at_;
    while (at_ < text_.size()) {
      if (take('[')) {
        names = with_each(names, bracket());
      } else if (is_name_character(text_[at_])) {
        const auto from = at_;
        while (at_ < text_.size() && is_name_character(text_[at_])) ++at_;
        for (auto& name : names) name += text_.substr(from, at_ - from);
      } else {
        break;
      }
      if (names.front().size() > kLongestName) refuse("a name is longer than 255 characters");
    }
    if (at_ < text_.size() && text_[at_] != ',') refuse(fmt::format("'{}' does not belong there", shown(text_[at_])));
    if (at_ == begin) refuse("a name is empty");
    return names;
  }

  // After '[': ranges and single numbers, up to ']'.
  std::vector<std::string> bracket() {
    std::vector<std::string> numbers;
    do {
      const auto first = number();
      const auto last = take('-') ? number() : first;
      const auto from = value_of(first), to = value_of(last);
      if (from > to) refuse(fmt::format("the range {}-{} runs backwards", first, last));
      if (numbers.size() + (to - from) >= kMostHosts) too_many();
      for (auto i = from; i <= to; ++i) {
        const auto digits = std::to_string(i);
        numbers.push_back(std::string(first.size() > digits.size() ? first.size() - digits.size() : 0, '0') + digits);
      }
    } while (take(','));
    if (!take(']')) refuse("a bracket holds something else than numbers and ranges, or is not closed");
    return numbers;
  }

  std::string_view number() {
    const auto from = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    if (at_ == from) refuse("a bracket holds something else than numbers and ranges, or is not closed");
    if (at_ - from > kMostDigits) refuse("a number is too long");
    return text_.substr(from, at_ - from);
  }

  static std::uint64_t value_of(std::string_view digits) {
    std::uint64_t value = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), value);
    return value;
  }

  std::vector<std::string> with_each(const std::vector<std::string>& names, const std::vector<std::string>& numbers) {
    if (names.size() * numbers.size() > kMostHosts) too_many();
    std::vector<std::string> result;
    result.reserve(names.size() * numbers.size());
    for (const auto& name : names)
      for (const auto& number : numbers) result.push_back(name + number);
    return result;
  }

  static char shown(char c) { return c >= ' ' && c <= '~' ? c : '?'; }

  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  [[noreturn]] void too_many() const { refuse(fmt::format("there are more than {}", kMostHosts)); }
  [[noreturn]] void refuse(std::string_view why) const {
    std::string start(text_.substr(0, kShown));
    for (auto& c : start) c = shown(c);
    throw UsageError("cli", fmt::format("{} is \"{}{}\", expected host names such as gpu[001-003,7],login: {}", label_,
                                        start, text_.size() > kShown ? "..." : "", why));
  }

  std::string_view label_;
  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

std::vector<std::string> expand_hostlist(std::string_view label, std::string_view text) {
  return Expansion(label, text).all();
}

}  // namespace dtrun::launcher
