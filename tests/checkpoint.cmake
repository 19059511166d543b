# Tests of worker_runtime/checkpoint: sharded checkpoints (safetensors alone: nn.cmake).
dtrun_test(test_checkpoint_parts unit
  SOURCES unit/worker_runtime/checkpoint/runs_test.cpp unit/worker_runtime/checkpoint/index_test.cpp
  DEPS worker_runtime/checkpoint LINK nlohmann_json::nlohmann_json)
dtrun_test(test_checkpoints integration SKIPS
  SOURCES integration/worker_runtime/checkpoint/layouts_test.cpp integration/worker_runtime/checkpoint/directory_test.cpp
    integration/worker_runtime/checkpoint/damage_test.cpp integration/worker_runtime/checkpoint/failure_test.cpp
    integration/worker_runtime/checkpoint/kill_test.cpp integration/worker_runtime/checkpoint/device_test.cpp
  DEPS worker_runtime/checkpoint worker_runtime/device)
