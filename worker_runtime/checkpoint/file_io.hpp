// Whole reads of files, and what makes names durable, with errors that name the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "rendezvous/base/unique_fd.hpp"

namespace dtrun::runtime {

// A regular file that is open for reading. Throws SystemError; Error for anything else than a regular file.
struct OpenFile {
  UniqueFd fd;
  std::uint64_t size = 0;
};
OpenFile open_to_read(const std::string& path);

// Reads exactly `out.size()` bytes at `offset`. Throws SystemError, or Error when the file ends before.
void read_at(const UniqueFd& file, const std::string& path, std::uint64_t offset, std::span<std::byte> out);

// All of it. Throws as above, and Error when it has more than `most` bytes.
std::string read_whole(const std::string& path, std::uint64_t most);

// Puts a whole file in place, durably. Throws SystemError.
void write_text(const std::filesystem::path& path, std::string_view text);

// Makes what was created, renamed and removed in a directory durable, where the file system can.
void sync_directory(const std::filesystem::path& directory);

// What an error says, without the area that it begins with: to be a part of another error.
std::string reason_of(const std::exception& error);

}  // namespace dtrun::runtime
