// What NCCL answers, as text.
#pragma once

#include <string>

#include "worker_runtime/comm/nccl/nccl_api.hpp"

namespace dtrun::runtime::nccl {

// Of an argument that cannot be: the communicator is as before. Every other error ends it.
constexpr bool nothing_happened(Result result) { return result == invalid_argument || result == invalid_usage; }
constexpr bool is_error(Result result) { return result != success && result != in_progress; }

// "remote process exited or there was a network error (6): what the library said last".
std::string text_of(const NcclApi& api, Result result, Comm comm);
// 22809 -> "2.28.9".
std::string version_text(int version);

}  // namespace dtrun::runtime::nccl
