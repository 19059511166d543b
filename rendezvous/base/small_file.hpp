// Files of /proc and /sys that are a few lines long.
#pragma once

#include <string>

namespace dtrun {

// The first 4 KiB; empty when the file cannot be read. Never blocks.
std::string read_small_file(const std::string& path);

}  // namespace dtrun
