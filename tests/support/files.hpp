// Files of tests.
#pragma once

#include <stdlib.h>
#include <algorithm>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

namespace dtrun::tests {

// The whole file; empty when there is none, or (of a process in /proc) when it goes while it is read.
inline std::string read_file(const std::filesystem::path& path) {
  const std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Removed with everything in it at the end.
class TempDirectory {
 public:
  TempDirectory() {
    auto pattern = (std::filesystem::temp_directory_path() / "dtrun-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  ~TempDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::filesystem::path& path() const { return path_; }
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  // Makes the file, and the directories it needs.
  std::filesystem::path write(const std::string& name, std::string_view text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << text;
    return path_ / name;
  }
  std::string read(const std::string& name) const { return read_file(path_ / name); }
  // Without what ThreadSanitizer's start leaves behind when it is killed.
  std::size_t entries() const {
    return static_cast<std::size_t>(
        std::count_if(std::filesystem::directory_iterator(path_), {},
                      [](const auto& entry) { return !entry.path().filename().string().starts_with("tsan.rodata."); }));
  }

 private:
  std::filesystem::path path_;
};

}  // namespace dtrun::tests
