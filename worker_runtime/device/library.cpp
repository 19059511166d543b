#include "worker_runtime/device/library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "rendezvous/base/env.hpp"
#include "worker_runtime/device/error.hpp"

namespace dtrun::runtime {
namespace {

namespace fs = std::filesystem;

// What came of looking for one library.
struct Looked {
  std::vector<std::string> places;  // where it was not
  std::vector<std::string> faults;  // what the loader said of files that are there
};

void* load(const std::string& file, Looked& looked) {
  void* const handle = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle != nullptr) return handle;
  const char* const said = ::dlerror();
  const std::string text = said != nullptr ? said : "unknown error";
  // A bare name that the loader has nowhere is no fault.
  const bool missing = file.find('/') == std::string::npos && text.starts_with(file + ": cannot open shared object");
  if (!missing) looked.faults.push_back(text);
  return nullptr;
}

std::string path_of(void* handle, const std::string& otherwise) {
  struct link_map* map = nullptr;
  return ::dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr ? map->l_name : otherwise;
}

std::vector<std::string> program_folders() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return {};
  return {program.parent_path().string(), (program.parent_path() / "../lib").lexically_normal().string()};
}

std::vector<std::string> toolkit_folders() {
  std::vector<std::string> folders;
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const auto home = env::get(variable); home && !home->empty()) folders.push_back(*home + "/lib64");
  }
  folders.push_back("/usr/local/cuda/lib64");
  return folders;
}

// lib/python3.x/{site,dist}-packages of one installation of Python.
void add_packages_of(const fs::path& prefix, std::vector<std::string>& folders) {
  for (const char* lib : {"lib", "local/lib"}) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(prefix / lib, error)) {
      if (!entry.path().filename().string().starts_with("python3")) continue;
      for (const char* kind : {"site-packages", "dist-packages"}) {
        const fs::path folder = entry.path() / kind;
        if (fs::is_directory(folder, error)) folders.push_back(folder.string());
      }
    }
  }
}

std::optional<fs::path> program_in_path(const char* name) {
  const std::string path = env::get("PATH").value_or("");
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find(':', begin), path.size());
    const fs::path file = fs::path(path.substr(begin, end - begin)) / name;
    std::error_code error;
    if (end > begin && fs::exists(file, error)) return file;
    begin = end + 1;
  }
  return std::nullopt;
}

void* load_from(const std::string& folder, const std::vector<std::string>& names, Looked& looked, std::string& path) {
  for (const auto& name : names) {
    const std::string file = folder + "/" + name;
    std::error_code error;
    if (!fs::exists(file, error)) continue;
    path = file;
    if (void* const handle = load(file, looked)) return handle;
  }
  looked.places.push_back(folder);
  return nullptr;
}

[[noreturn]] void throw_missing(const LibrarySearch& search, const Looked& looked) {
  std::string text = fmt::format("{} is missing: no usable {} in {}", search.what, fmt::join(search.names, ", "),
                                 fmt::join(looked.places, ", "));
  if (!looked.faults.empty()) text += fmt::format("; the loader said: {}", fmt::join(looked.faults, "; "));
  if (!search.fix.empty()) text += fmt::format("; to fix it: {}", search.fix);
  throw DeviceError("device", text);
}

}  // namespace

void* Library::find(const char* symbol) const noexcept {
  return handle_ != nullptr ? ::dlsym(handle_, symbol) : nullptr;
}

void* Library::symbol(const char* symbol) const {
  void* const found = find(symbol);
  if (found == nullptr) throw DeviceError("device", fmt::format("{} has no {}: it is too old", path_, symbol));
  return found;
}

std::vector<std::string> python_package_folders() {
  std::vector<std::string> folders;
  if (const auto own = env::get("VIRTUAL_ENV"); own && !own->empty()) add_packages_of(*own, folders);
  if (const auto python = program_in_path("python3")) add_packages_of(python->parent_path().parent_path(), folders);
  if (const auto home = env::get("HOME"); home && !home->empty()) add_packages_of(fs::path(*home) / ".local", folders);
  std::vector<std::string> once;
  for (auto& folder : folders) {
    if (std::find(once.begin(), once.end(), folder) == once.end()) once.push_back(std::move(folder));
  }
  return once;
}

Library open_library(const LibrarySearch& search) {
  Library library;
  Looked looked;
  const auto opened = [&](const std::vector<std::string>& folders) {
    for (const auto& folder : folders) {
      if (library.handle_ == nullptr) library.handle_ = load_from(folder, search.names, looked, library.path_);
    }
    return library.handle_ != nullptr;
  };
  const auto told = search.variable.empty() ? std::nullopt : env::get(search.variable.c_str());
  if (told && !told->empty()) {
    std::error_code error;
    if (fs::is_directory(*told, error)) {
      if (opened({*told})) return library;
    } else {
      library.path_ = *told;
      library.handle_ = load(*told, looked);
      if (library.handle_ != nullptr) return library;
    }
    looked.places = {fmt::format("{}={}", search.variable, *told)};
    throw_missing(search, looked);
  }
  if (search.beside_program && opened(program_folders())) return library;
  for (const auto& name : search.names) {
    library.path_ = name;
    library.handle_ = load(name, looked);
    if (library.handle_ == nullptr) continue;
    library.path_ = path_of(library.handle_, name);
    return library;
  }
  looked.places.push_back("the loader's path");
  if (search.beside_program) throw_missing(search, looked);
  if (opened(toolkit_folders())) return library;
  for (const auto& folder : python_package_folders()) {
    for (const auto& package : search.packages) {
      if (opened({folder + "/" + package})) return library;
    }
  }
  throw_missing(search, looked);
}

}  // namespace dtrun::runtime
