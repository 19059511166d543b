# Tests of worker_runtime/{data,parallel,worker}.
dtrun_test(test_data unit
  SOURCES unit/worker_runtime/data/distributed_sampler_test.cpp unit/worker_runtime/data/token_dataset_test.cpp
    unit/worker_runtime/data/batch_stream_test.cpp
  DEPS worker_runtime/data)
target_compile_definitions(test_data PRIVATE DTRUN_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
dtrun_test(test_parallel unit
  SOURCES unit/worker_runtime/parallel/compile_test.cpp unit/worker_runtime/parallel/check_test.cpp
    unit/worker_runtime/parallel/executor_test.cpp
  DEPS worker_runtime/parallel worker_runtime/checkpoint)
dtrun_test(test_worker unit
  SOURCES unit/worker_runtime/worker/command_line_test.cpp unit/worker_runtime/worker/environment_test.cpp
    unit/worker_runtime/worker/records_test.cpp
  DEPS worker_runtime/worker)
