// A file in memory without reading it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>

namespace dtrun::runtime {

// Copies share the mapping. A file that shrinks while it is mapped ends the process.
struct MappedFile {
  std::shared_ptr<const void> owner;
  const std::byte* data = nullptr;
  std::int64_t bytes = 0;

  std::string_view text() const { return {reinterpret_cast<const char*>(data), static_cast<std::size_t>(bytes)}; }
};

// A regular file that is not empty; everything else is a UsageError with its name. `what` is what messages call it.
MappedFile map_file(const std::filesystem::path& path, std::string_view what = "data file");

}  // namespace dtrun::runtime
