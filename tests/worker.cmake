# Tests of worker_runtime/{data,parallel,worker}.
dtrun_test(test_data unit
  SOURCES unit/worker_runtime/data/distributed_sampler_test.cpp unit/worker_runtime/data/token_dataset_test.cpp
    unit/worker_runtime/data/batch_stream_test.cpp unit/worker_runtime/data/data_position_test.cpp
    unit/worker_runtime/data/bpe_test.cpp
  DEPS worker_runtime/data LINK dtrun_fmt nlohmann_json::nlohmann_json)
target_compile_definitions(test_data PRIVATE DTRUN_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
dtrun_test(test_parallel unit
  SOURCES unit/worker_runtime/parallel/compile_test.cpp unit/worker_runtime/parallel/check_test.cpp
    unit/worker_runtime/parallel/executor_test.cpp unit/worker_runtime/parallel/shards_test.cpp
    unit/worker_runtime/parallel/dry_run_test.cpp unit/worker_runtime/parallel/pipeline_program_test.cpp
  DEPS worker_runtime/parallel worker_runtime/checkpoint)
dtrun_test(test_worker unit
  SOURCES unit/worker_runtime/worker/command_line_test.cpp unit/worker_runtime/worker/environment_test.cpp
    unit/worker_runtime/worker/records_test.cpp unit/worker_runtime/worker/memory_need_test.cpp
    unit/worker_runtime/worker/model_directory_test.cpp unit/worker_runtime/worker/memory_snapshot_test.cpp
    unit/worker_runtime/worker/tokenize_test.cpp
  DEPS worker_runtime/worker LINK nlohmann_json::nlohmann_json)
target_compile_definitions(test_worker PRIVATE DTRUN_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
dtrun_test(test_resume integration
  SOURCES integration/worker_runtime/worker/resume_test.cpp
  DEPS worker_runtime/worker TIMEOUT 120)
dtrun_test(test_guards integration
  SOURCES integration/worker_runtime/worker/guards_test.cpp
  DEPS worker_runtime/worker TIMEOUT 180)
dtrun_test(test_convert integration
  SOURCES integration/worker_runtime/worker/convert_test.cpp
  DEPS worker_runtime/worker LINK nlohmann_json::nlohmann_json TIMEOUT 120)
dtrun_test(test_ddp integration
  SOURCES integration/worker_runtime/parallel/ddp_test.cpp integration/worker_runtime/parallel/fsdp_test.cpp integration/worker_runtime/parallel/needs_test.cpp
    integration/worker_runtime/parallel/last_batch_test.cpp
  DEPS worker_runtime/worker TIMEOUT 120)
dtrun_test(test_tp integration
  SOURCES integration/worker_runtime/parallel/tp_test.cpp integration/worker_runtime/parallel/pp_tp_test.cpp
  DEPS worker_runtime/worker TIMEOUT 180)
dtrun_test(test_pipeline integration
  SOURCES integration/worker_runtime/parallel/pipeline_test.cpp
  DEPS worker_runtime/worker TIMEOUT 180)
dtrun_test(test_resume_scenario scenario
  SOURCES scenario/worker_resume_test.cpp scenario/worker_disk_test.cpp
  LINK dtrun_test_job TIMEOUT 180)
target_compile_definitions(test_resume_scenario PRIVATE DTRUN_PROGRAM="$<TARGET_FILE:dtrun>")
add_dependencies(test_resume_scenario dtrun dtrun-worker)
dtrun_test(test_worker_scenario scenario
  SOURCES scenario/worker_test.cpp scenario/worker_progress_test.cpp scenario/worker_hosts_test.cpp scenario/worker_layouts_test.cpp scenario/worker_convert_test.cpp
    scenario/own_model_test.cpp
  DEPS rendezvous/server rendezvous/contract
  LINK dtrun_test_job nlohmann_json::nlohmann_json TIMEOUT 180)
target_compile_definitions(test_worker_scenario PRIVATE DTRUN_PROGRAM="$<TARGET_FILE:dtrun>"
  DTRUN_WORKER_PROGRAM="$<TARGET_FILE:dtrun-worker>" DTRUN_OWN_MODEL_PROGRAM="$<TARGET_FILE:own_model>" DTRUN_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
add_dependencies(test_worker_scenario dtrun dtrun-worker own_model)
