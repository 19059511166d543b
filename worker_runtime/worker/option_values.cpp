// The little languages inside option values.
#include <fmt/format.h>

#include <set>
#include <sstream>

#include "rendezvous/base/env.hpp"
#include "rendezvous/base/error.hpp"
#include "worker_runtime/worker/command_line.hpp"

namespace dtrun::runtime {

std::int64_t parse_size(std::string_view label, std::string_view text) {
  auto digits = text;
  int shift = 0;
  if (!digits.empty()) {
    switch (digits.back()) {
      case 'k':
      case 'K':
        shift = 10;
        break;
      case 'm':
      case 'M':
        shift = 20;
        break;
      case 'g':
      case 'G':
        shift = 30;
        break;
      default:
        break;
    }
  }
  if (shift != 0) digits.remove_suffix(1);
  const auto value = env::parse_int(digits);
  if (!value || *value < 1 || *value > (std::int64_t{1} << 40) >> shift) {
    throw UsageError("worker", fmt::format("{} is \"{}\", expected a size such as 4096, 64K or 1G", label, text));
  }
  return *value << shift;
}

Axes parse_parallel(const std::string& text, int world_size) {
  if (text.empty()) return {world_size, 1};
  Axes axes;
  std::int64_t product = 1;
  std::istringstream items(text);
  std::string item;
  std::set<std::string> seen;
  while (std::getline(items, item, ',')) {
    const auto equals = item.find('=');
    const auto axis = item.substr(0, equals);
    const auto size = env::parse_int(equals == std::string::npos ? "" : item.substr(equals + 1));
    const auto wrong = [&](std::string_view why) {
      return UsageError("train", fmt::format("--parallel is \"{}\": {}", text, why));
    };
    if (!size || *size < 1 || *size > 1 << 20) throw wrong(fmt::format("\"{}\", expected axis=N", item));
    if (!seen.insert(axis).second) throw wrong(fmt::format("{} is given twice", axis));
    if (axis == "dp") {
      axes.dp = static_cast<int>(*size);
    } else if (axis == "fsdp") {
      axes.fsdp = static_cast<int>(*size);
    } else if (axis == "hsdp" || axis == "zero" || axis == "tp" || axis == "sp" || axis == "pp") {
      if (*size > 1) throw wrong(fmt::format("the axis {} is not supported yet", axis));
    } else {
      throw wrong(fmt::format("unknown axis \"{}\", expected dp or fsdp", axis));
    }
    product *= *size;
  }
  if (product != world_size) {
    throw UsageError("train", fmt::format("--parallel {} needs {} ranks, this job has {}", text, product, world_size));
  }
  if (axes.dp > 1 && axes.fsdp > 1)
    throw UsageError("train", fmt::format("--parallel is \"{}\": dp and fsdp together are not supported yet", text));
  return axes;
}

}  // namespace dtrun::runtime
