// A file with a secret in it, as a token file is: mode 0600, gone with the object.
#pragma once

#include <filesystem>
#include <string>

#include "tests/support/files.hpp"

namespace dtrun::tests {

class PrivateFile {
 public:
  explicit PrivateFile(const std::string& content, unsigned mode = 0600) : path_(directory_.write("secret", content)) {
    std::filesystem::permissions(path_, static_cast<std::filesystem::perms>(mode));
  }
  const std::string& path() const { return path_; }

 private:
  TempDirectory directory_;
  std::string path_;
};

}  // namespace dtrun::tests
