# Tests of the GPU path: device/, ops/gpu/, kernels/cuda/.
find_path(DTRUN_CUDA_INCLUDE cuda_runtime_api.h HINTS /usr/local/cuda/include)  # also with DTRUN_CUDA=off
find_path(DTRUN_CUBLASLT_INCLUDE cublasLt.h HINTS ${DTRUN_CUDA_INCLUDE} /usr/local/cuda/include)
find_path(DTRUN_CUDNN_INCLUDE cudnn_graph.h HINTS ${DTRUN_CUDA_INCLUDE} /usr/local/cuda/include)
find_path(DTRUN_NCCL_INCLUDE nccl.h HINTS ${DTRUN_CUDA_INCLUDE} /usr/local/cuda/include)
dtrun_test(test_cuda_libraries integration SKIPS
  SOURCES unit/worker_runtime/device/library_test.cpp unit/worker_runtime/device/headers_test.cpp
          integration/worker_runtime/device/cuda_libraries_test.cpp
  DEPS worker_runtime/device)
# The headers of the libraries are for one file only: its declarations are compared with theirs.
set(headers "")
foreach(library CUBLASLT CUDNN NCCL)
  if(DTRUN_${library}_INCLUDE AND DTRUN_CUDA_INCLUDE)
    list(APPEND headers DTRUN_HAS_${library})
    target_include_directories(test_cuda_libraries SYSTEM PRIVATE ${DTRUN_${library}_INCLUDE} ${DTRUN_CUDA_INCLUDE})
  endif()
endforeach()
set_source_files_properties(unit/worker_runtime/device/headers_test.cpp PROPERTIES COMPILE_DEFINITIONS "${headers}")
if(TARGET dtrun_cuda)
  target_compile_definitions(test_cuda_libraries PRIVATE DTRUN_CUDA_BUILT)
  add_dependencies(test_cuda_libraries dtrun_cuda)
endif()

# Plans of the real cuDNN for GPUs that are not here: behind a CUDA driver that loads everything and runs nothing.
add_library(no_driver MODULE support/no_driver.cpp)
target_link_libraries(no_driver PRIVATE dtrun_flags)
target_link_options(no_driver PRIVATE LINKER:-soname,libcuda.so.1)
dtrun_test(test_cudnn_plans integration SKIPS
  SOURCES integration/worker_runtime/device/cudnn_plans_test.cpp
  DEPS worker_runtime/ops LINK dtrun_fmt TIMEOUT 180)
target_compile_definitions(test_cudnn_plans PRIVATE DTRUN_NO_DRIVER="$<TARGET_FILE:no_driver>")
add_dependencies(test_cudnn_plans no_driver)

# The simulated accelerator, and Device on it.
dtrun_test(test_device unit
  SOURCES unit/worker_runtime/device/device_test.cpp unit/worker_runtime/device/fake/scheduler_test.cpp
          unit/worker_runtime/device/fake/races_test.cpp unit/worker_runtime/device/fake/memory_test.cpp
          unit/worker_runtime/device/fake/errors_test.cpp unit/worker_runtime/device/fake/random_programs_test.cpp
  DEPS worker_runtime/device worker_runtime/ops)

dtrun_test(test_gpu_linear unit
  SOURCES unit/worker_runtime/ops/gpu/linear_test.cpp unit/worker_runtime/ops/gpu/fake_blas_lt_test.cpp
          unit/worker_runtime/ops/gpu/sdpa_test.cpp unit/worker_runtime/ops/gpu/fake_cudnn_test.cpp
  DEPS worker_runtime/ops)

# The kernels by their host twins, and the ops that launch them.
dtrun_test(test_kernels unit
  SOURCES unit/worker_runtime/kernels/kernels_test.cpp unit/worker_runtime/kernels/ops_on_device_test.cpp
          unit/worker_runtime/kernels/op_cases.cpp
  DEPS worker_runtime/ops LINK dtrun_fmt TIMEOUT 300)

# scripts/gpu_check.sh: the GPU path on a GPU. Without one, the program checks itself on the simulated device.
add_executable(gpu_check gpu/gpu_check.cpp gpu/kernel_checks.cpp gpu/device_checks.cpp gpu/nccl_checks.cpp
  gpu/loopback_checks.cpp gpu/attention_checks.cpp unit/worker_runtime/kernels/op_cases.cpp)
target_link_libraries(gpu_check PRIVATE dtrun_flags dtrun_fmt dtrun_worker_runtime_optim dtrun_worker_runtime_comm)
add_test(NAME "gpu: checks on this machine's GPU" COMMAND ${CMAKE_SOURCE_DIR}/scripts/gpu_check.sh ${CMAKE_BINARY_DIR})
set_tests_properties("gpu: checks on this machine's GPU" PROPERTIES LABELS gpu TIMEOUT 900 RUN_SERIAL TRUE SKIP_RETURN_CODE 77)
add_test(NAME "unit: gpu_check on the simulated device" COMMAND gpu_check --device=fake-cuda)
set_tests_properties("unit: gpu_check on the simulated device" PROPERTIES LABELS unit TIMEOUT 240)

# Training in bf16 on fake GPUs.
dtrun_test(test_gpu_bf16 integration
  SOURCES integration/worker_runtime/gpu/bf16_test.cpp integration/worker_runtime/gpu/cudnn_test.cpp
  DEPS worker_runtime/worker TIMEOUT 240 ENVIRONMENT DTRUN_CPU=twin)

# Backend nccl over FakeNccl and FakeCuda: ranks as threads and as processes.
dtrun_test(test_nccl integration SKIPS
  SOURCES integration/worker_runtime/comm/nccl_verbs_test.cpp integration/worker_runtime/comm/nccl_group_test.cpp
          integration/worker_runtime/comm/nccl_faults_test.cpp integration/worker_runtime/comm/loopback_test.cpp
  DEPS worker_runtime/comm rendezvous/store LINK dtrun_fmt TIMEOUT 120)

# Training on fake GPUs: every layout, the order of streams, and the worker from outside.
dtrun_test(test_gpu_train integration
  SOURCES integration/worker_runtime/gpu/train_test.cpp
  DEPS worker_runtime/worker TIMEOUT 180 ENVIRONMENT DTRUN_CPU=twin)
dtrun_test(test_gpu_races integration
  SOURCES integration/worker_runtime/gpu/races_test.cpp
  DEPS worker_runtime/worker TIMEOUT 180)
dtrun_test(test_gpu_scenario scenario
  SOURCES scenario/worker_gpu_test.cpp
  LINK dtrun_test_job nlohmann_json::nlohmann_json TIMEOUT 180)
target_compile_definitions(test_gpu_scenario PRIVATE DTRUN_PROGRAM="$<TARGET_FILE:dtrun>"
  DTRUN_WORKER_PROGRAM="$<TARGET_FILE:dtrun-worker>")
add_dependencies(test_gpu_scenario dtrun dtrun-worker)
