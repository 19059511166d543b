#include "worker_runtime/comm/nccl/errors.hpp"

#include <fmt/format.h>

namespace dtrun::runtime::nccl {

std::string text_of(const NcclApi& api, Result result, Comm comm) {
  const char* text = api.get_error_string(result);
  const char* last = api.get_last_error == nullptr ? nullptr : api.get_last_error(comm);
  return fmt::format("{} ({}){}{}", text == nullptr ? "unknown error" : text, static_cast<int>(result),
                     last != nullptr && *last != '\0' ? ": " : "", last == nullptr ? "" : last);
}

std::string version_text(int version) {
  return version < 10000 ? fmt::format("{}.{}.{}", version / 1000, version / 100 % 10, version % 100)
                         : fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace dtrun::runtime::nccl
