// The name of a job that several nodes share.
#pragma once

#include <string_view>

namespace dtrun {

// It travels between machines and becomes part of file names and log lines: 1 to 128 of A-Z a-z 0-9 . _ - only.
inline constexpr std::string_view kJobIdRule = "1 to 128 characters of A-Z a-z 0-9 . _ -";
bool is_job_id(std::string_view text);

}  // namespace dtrun
