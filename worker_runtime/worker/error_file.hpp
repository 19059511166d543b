// How a worker tells the launcher why it failed: the file named by TORCHELASTIC_ERROR_FILE, in the form of torch's
// @record.
#pragma once

#include <exception>
#include <string>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/core/memory_error.hpp"

namespace dtrun::runtime {

// The kind of an error by name, such as "CommError".
std::string error_kind(const std::exception& error);
// As rendezvous/contract/error_document.hpp; a rank that was waited for in vain is named first, and as blames_rank.
std::string error_document(const std::exception& error, long long timestamp);
// Writes it so that a reader sees all of it or nothing. Never throws: the error itself matters more; returns false on
// failure.
bool write_error_file(const std::string& path, const std::exception& error) noexcept;

enum class Reported { written, no_file, before };
// Writes the file that TORCHELASTIC_ERROR_FILE names, when it is set. The first error of the process counts, later
// calls do nothing.
Reported report_to_launcher(const std::exception& error) noexcept;

}  // namespace dtrun::runtime
