// What ops say of wrong ids and targets, at once on the CPU and when a device is next waited for.
#pragma once

#include <cstdint>
#include <string>

namespace dtrun::runtime::ops {

// `place`: where the first wrong id stands; expected are 0 to limit - 1.
std::string token_fault_text(const std::string& op, std::int64_t place, std::int32_t id, std::int64_t limit);
// The same of a target, which may be kIgnoreIndex too.
std::string target_fault_text(const std::string& op, std::int64_t row, std::int32_t target, std::int64_t limit);

}  // namespace dtrun::runtime::ops
