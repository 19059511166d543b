// The real libraries, as far as they go without a driver. Cases without their library are skipped, with the reason.
#include <cstdio>
#include <cstdlib>

#include "tests/catch.hpp"
#include "worker_runtime/device/blas_lt_api.hpp"
#include "worker_runtime/device/cuda_library.hpp"
#include "worker_runtime/device/cudnn_api.hpp"
#include "worker_runtime/device/error.hpp"
#include "worker_runtime/device/libraries.hpp"
#include "worker_runtime/kernels/list.hpp"

namespace dtrun::runtime {
namespace {

using Catch::Matchers::Contains;

// Whether `open` works. Otherwise says why, so that the case counts as skipped.
template <class Open>
bool there(Open open) {
  try {
    open();
    return true;
  } catch (const DeviceError& error) {
    std::printf("skipped: %s\n", error.what());
    return false;
  }
}

bool has_driver() {
  try {
    cuda_library();
  } catch (const DeviceError&) {
    return false;
  }
  int version = 0;
  return cuda_library().cuda.driver_get_version(&version) == cuda::kSuccess && version != 0;
}

}  // namespace

TEST_CASE("libdtrun_cuda.so is the one of this program, and all of its tables are filled") {
#if !defined(DTRUN_CUDA_BUILT)
  if (!there(cuda_library)) return;
#endif
  const cuda::CudaLibrary& library = cuda_library();
  CHECK(library.kernels.list_hash == kernels::list_hash());
  REQUIRE(library.kernels.launch != nullptr);
  cuda::CudaApi api = library.cuda;
  if (api.name_stream == nullptr) api.name_stream = [](cuda::StreamHandle, const char*) {};  // the one that need not be
  const auto* const members = reinterpret_cast<void* const*>(&api);
  for (std::size_t i = 0; i < sizeof api / sizeof(void*); ++i) CHECK(members[i] != nullptr);
  CHECK_THAT(library.cuda.get_error_name(35), Catch::Equals("cudaErrorInsufficientDriver"));
}

TEST_CASE("without a driver, a device is refused with one line that says what to do") {
  if (!there(cuda_library)) return;
  if (has_driver()) {
    std::puts("skipped: there is a driver");
    return;
  }
  int count = -1;
  const cuda::Result result = cuda_library().cuda.get_device_count(&count);
  CHECK((result == cuda::kInsufficientDriver || result == cuda::kNoDevice));
  CHECK_THROWS_WITH(open_cuda_device(0), Contains("no GPU here: ") && Contains("--device=fake-cuda"));
}

TEST_CASE("a launch that no kernel fits is refused by the library") {
  if (!there(cuda_library)) return;
  const auto& api = cuda_library().kernels;
  const kernels::Add<float> add{};
  const int number = static_cast<int>(kernels::kernel_id<kernels::Add<float>>);
  CHECK(api.launch(number, &add, sizeof add - 1, {1, 256, 0}, nullptr, 0, nullptr) == 1);
  CHECK(api.launch(number, &add, sizeof add, {1, 128, 0}, nullptr, 0, nullptr) == 1);
  CHECK(api.launch(static_cast<int>(kernels::KernelId::count), &add, sizeof add, {1, 256, 0}, nullptr, 0, nullptr) ==
        98);
  if (!has_driver()) CHECK(api.launch(number, &add, sizeof add, {1, 256, 0}, nullptr, 0, nullptr) == 35);
}

TEST_CASE("cuBLASLt makes descriptors without a driver, and says by name that it cannot make a handle") {
  if (!there(blas_lt_library)) return;
  const BlasLtApi& api = blas_lt_library();
  CHECK(api.get_version() >= 120000);
  blas_lt::MatmulDesc desc = nullptr;
  REQUIRE(api.matmul_desc_create(&desc, blas_lt::Compute::f32, blas_lt::Type::f32) == blas_lt::ok);
  const auto yes = blas_lt::Transpose::yes;
  CHECK(api.matmul_desc_set_attribute(desc, blas_lt::DescAttribute::transpose_a, &yes, sizeof yes) == blas_lt::ok);
  CHECK(api.matmul_desc_destroy(desc) == blas_lt::ok);
  blas_lt::MatrixLayout layout = nullptr;
  REQUIRE(api.matrix_layout_create(&layout, blas_lt::Type::bf16, 8, 16, 8) == blas_lt::ok);
  CHECK(api.matrix_layout_destroy(layout) == blas_lt::ok);
  if (has_driver()) return;
  blas_lt::Handle handle = nullptr;
  const blas_lt::Status status = api.create(&handle);
  CHECK(status == blas_lt::not_initialized);
  CHECK_THAT(api.get_status_name(status), Catch::Equals("CUBLAS_STATUS_NOT_INITIALIZED"));
}

TEST_CASE("cuDNN loads, makes descriptors without a driver, and says by name that it cannot make a handle") {
  if (!there(cudnn_library)) return;
  const CudnnApi& api = cudnn_library();
  CHECK(api.get_version() >= 91100);
  cudnn::Descriptor tensor = nullptr;
  REQUIRE(api.create_descriptor(cudnn::Kind::tensor, &tensor) == cudnn::ok);
  CHECK(api.destroy_descriptor(tensor) == cudnn::ok);
  if (has_driver()) return;
  cudnn::Handle handle = nullptr;
  const cudnn::Status status = api.create(&handle);
  CHECK(status != cudnn::ok);
  CHECK_THAT(api.get_error_string(status), Contains("CUDNN_STATUS_"));
}

TEST_CASE("DTRUN_CUDNN says whether cuDNN is used") {
  const auto say = [](const char* word) { ::setenv("DTRUN_CUDNN", word, 1); };
  ::unsetenv("DTRUN_CUDNN");
  CHECK(cudnn_use() == CudnnUse::automatic);
  say("off");
  CHECK(with_cudnn({}).cudnn == nullptr);
  CHECK(with_cudnn({}).without_cudnn == "DTRUN_CUDNN=off");
  say("yes");
  CHECK_THROWS_WITH(cudnn_use(), Contains("expected auto, on or off"));
  say("on");
  CHECK(cudnn_use() == CudnnUse::on);
  ::unsetenv("DTRUN_CUDNN");
}

}  // namespace dtrun::runtime
