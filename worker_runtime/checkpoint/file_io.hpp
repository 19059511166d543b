// Whole reads of files, with errors that name the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "rendezvous/base/unique_fd.hpp"

namespace dtrun::runtime {

// Reads exactly `out.size()` bytes at `offset`. Throws SystemError, or Error when the file ends before.
void read_at(const UniqueFd& file, const std::string& path, std::uint64_t offset, std::span<std::byte> out);

}  // namespace dtrun::runtime
