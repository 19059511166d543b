// The text that `dtrun-worker` trains on when no data is given.
#pragma once

#include <string_view>

namespace dtrun::runtime {

// About 14 KB of plain ASCII English, written for this project (no other source, same licence as the code).
std::string_view embedded_text();

}  // namespace dtrun::runtime
