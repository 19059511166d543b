// Shared libraries that are looked for at run time, because the programs of dtrun link nothing of CUDA.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dtrun::runtime {

struct LibrarySearch;

// An open library. A value; copies share it. It stays open until the process ends: what CUDA libraries leave behind
// (threads, handlers) outlives a dlclose.
class Library {
 public:
  Library() = default;
  bool defined() const noexcept { return handle_ != nullptr; }
  // The file it came from.
  const std::string& path() const noexcept { return path_; }
  // Null when it has none of that name.
  void* find(const char* symbol) const noexcept;
  // Throws DeviceError, which says that the library is too old, when it has none of that name.
  void* symbol(const char* symbol) const;
  template <class Function>
  void fill(Function*& function, const char* name) const {
    function = reinterpret_cast<Function*>(symbol(name));
  }

 private:
  friend Library open_library(const LibrarySearch& search);
  std::string path_;
  void* handle_ = nullptr;
};

// Where a library is looked for, in this order: the variable (when it is set: nowhere else), beside the program and in
// ../lib of it, the loader's own path, CUDA_HOME, CUDA_PATH and /usr/local/cuda, packages of pip.
struct LibrarySearch {
  std::string what;                        // "cuBLASLt"; for messages
  std::vector<std::string> names;          // of files, best first: "libcublasLt.so.13"
  std::string variable = {};               // of the environment, names the file or its directory; may be empty
  bool beside_program = false;             // whether it belongs to dtrun; then not in toolkits and packages
  std::vector<std::string> packages = {};  // of pip, folders below site-packages: "nvidia/nccl/lib"
  std::string fix = {};                    // what to do when there is none: "install ..."
};

// Throws DeviceError, one line: what was looked for, where, what was wrong with the files that are there, how to fix
// it.
Library open_library(const LibrarySearch& search);

// The folders that packages of pip for the python3 of VIRTUAL_ENV and of PATH are in.
std::vector<std::string> python_package_folders();

}  // namespace dtrun::runtime
