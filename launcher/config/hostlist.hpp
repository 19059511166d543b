// SLURM's short form of host lists: gpu[001-003,7],login-a[1-2]b[3-4],x
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace dtrun::launcher {

constexpr std::size_t kMostHosts = 65536;

// The names in the list's order, several brackets of a name with the rightmost counting fastest. The zeros in front of
// a range's first number are kept: [08-10] is 08, 09, 10. Throws UsageError "<label> is ..., expected ..." for anything
// that is not a list of host names, and for more than kMostHosts of them.
std::vector<std::string> expand_hostlist(std::string_view label, std::string_view text);

}  // namespace dtrun::launcher
