#include "worker_runtime/device/library.hpp"

#include <cstdlib>
#include <filesystem>

#include "tests/catch.hpp"
#include "tests/support/files.hpp"
#include "worker_runtime/device/error.hpp"
#include "worker_runtime/device/libraries.hpp"

namespace dtrun::runtime {
namespace {

using Catch::Matchers::Contains;

struct Variable {
  Variable(const char* set, const std::string& value) : name(set) { ::setenv(set, value.c_str(), 1); }
  ~Variable() { ::unsetenv(name); }
  const char* name;
};

std::string said_of(const LibrarySearch& search) {
  try {
    open_library(search);
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "nothing";
}

cuda::CudaApi versions(int driver) {
  static int given;
  given = driver;
  cuda::CudaApi api{};
  api.driver_get_version = [](int* version) { return *version = given, cuda::kSuccess; };
  api.runtime_get_version = [](int* version) { return *version = 13000, cuda::kSuccess; };
  api.get_error_name = [](cuda::Result) { return "cudaErrorX"; };
  api.get_error_string = [](cuda::Result) { return "as bad as can be"; };
  return api;
}

std::string said_of_count(int driver, cuda::Result result, int count) {
  try {
    checked_device_count(versions(driver), result, count);
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "nothing";
}

}  // namespace

TEST_CASE("a library that is nowhere: one line with the file, every place and the fix") {
  const std::string said = said_of({.what = "the nothing library",
                                    .names = {"libdtrun_nothing.so.7"},
                                    .packages = {"nvidia/nothing/lib"},
                                    .fix = "install nothing"});
  CHECK_THAT(said, Contains("the nothing library is missing"));
  CHECK_THAT(said, Contains("libdtrun_nothing.so.7"));
  CHECK_THAT(said, Contains("the loader's path"));
  CHECK_THAT(said, Contains("/usr/local/cuda/lib64"));
  CHECK_THAT(said, Contains("to fix it: install nothing"));
  CHECK_THAT(said, !Contains("\n"));
  CHECK_THAT(said_of({.what = "x", .names = {"libdtrun_nothing.so"}, .beside_program = true}),
             Contains(std::filesystem::read_symlink("/proc/self/exe").parent_path().string()));
}

TEST_CASE("a variable names the file or its folder, and then no other place counts") {
  const LibrarySearch search{.what = "the C library", .names = {"libc.so.6"}, .variable = "DTRUN_TEST_LIB"};
  const Library found = open_library(search);
  CHECK_THAT(found.path(), Contains("/libc.so.6"));
  {
    const Variable set("DTRUN_TEST_LIB", found.path());
    CHECK(open_library(search).path() == found.path());
  }
  {
    const Variable set("DTRUN_TEST_LIB", std::filesystem::path(found.path()).parent_path().string());
    CHECK(open_library(search).path() == found.path());
  }
  const Variable set("DTRUN_TEST_LIB", "/nowhere/libc.so.6");
  const std::string said = said_of(search);
  CHECK_THAT(said, Contains("DTRUN_TEST_LIB=/nowhere/libc.so.6"));
  CHECK_THAT(said, Contains("cannot open shared object file"));
}

TEST_CASE("a file that is no library is told with what the loader says of it") {
  const tests::TempDirectory folder;
  folder.write("libdtrun_text.so", "no library");
  const Variable set("DTRUN_TEST_LIB", folder.path().string());
  const std::string said = said_of({.what = "text", .names = {"libdtrun_text.so"}, .variable = "DTRUN_TEST_LIB"});
  CHECK_THAT(said, Contains("the loader said: ") && Contains("libdtrun_text.so: "));
}

TEST_CASE("a symbol that a library lacks is named with the library") {
  const Library library = open_library({.what = "the C library", .names = {"libc.so.6"}});
  CHECK(library.find("printf") != nullptr);
  CHECK(library.find("dtrun_print") == nullptr);
  CHECK_THROWS_WITH(library.symbol("dtrun_print"), Contains("libc.so.6 has no dtrun_print: it is too old"));
}

TEST_CASE("folders of packages are those of the active virtual environment, then of python3") {
  const tests::TempDirectory folder;
  std::filesystem::create_directories(folder.path() / "lib/python3.11/site-packages");
  const Variable set("VIRTUAL_ENV", folder.path().string());
  const auto folders = python_package_folders();
  REQUIRE(!folders.empty());
  CHECK(folders.front() == (folder.path() / "lib/python3.11/site-packages").string());
}

TEST_CASE("no device: the message tells a missing driver from an old one and from no GPU") {
  CHECK_THAT(said_of_count(0, 35, 0), Contains("no GPU here: the driver is missing (cudaErrorInsufficientDriver); use "
                                               "--device=cpu, or --device=fake-cuda to try this path"));
  CHECK_THAT(said_of_count(12020, 35, 0),
             Contains("the driver is too old (cudaErrorInsufficientDriver): it is for CUDA "
                      "12.2, expected 13.0 or newer"));
  CHECK_THAT(said_of_count(13000, 100, 0), Contains("cudaErrorNoDevice"));
  CHECK_THAT(said_of_count(13000, 0, 0), Contains("CUDA_VISIBLE_DEVICES leaves none"));
  CHECK_THAT(said_of_count(13000, 999, 0), Contains("cudaGetDeviceCount failed: cudaErrorX (as bad as can be)"));
  CHECK(checked_device_count(versions(13000), 0, 3) == 3);
}

}  // namespace dtrun::runtime
