# Tests of worker_runtime/autograd, nn, optim, checkpoint.
dtrun_test(test_checkpoint unit
  SOURCES unit/worker_runtime/checkpoint/safetensors_test.cpp
  DEPS worker_runtime/checkpoint LINK fmt::fmt-header-only)
dtrun_test(test_nn unit
  SOURCES unit/worker_runtime/nn/nodes_test.cpp unit/worker_runtime/nn/gpt2_test.cpp unit/worker_runtime/nn/llama_test.cpp
    unit/worker_runtime/nn/model_test.cpp
  DEPS worker_runtime/nn worker_runtime/checkpoint)
dtrun_test(test_optim unit
  SOURCES unit/worker_runtime/optim/optim_test.cpp
  DEPS worker_runtime/optim)

# Parity: the numbers of PyTorch, from golden files and, where PyTorch is installed, live with fresh weights.
add_executable(gpt2_parity parity/gpt2_parity.cpp)
target_link_libraries(gpt2_parity PRIVATE dtrun_flags fmt::fmt-header-only
  dtrun_worker_runtime_nn dtrun_worker_runtime_optim dtrun_worker_runtime_checkpoint)
add_test(NAME "parity: GPT-2 golden files" COMMAND gpt2_parity ${CMAKE_CURRENT_SOURCE_DIR}/data/parity)
add_test(NAME "parity: GPT-2 beside PyTorch" COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/parity/gpt2_live.sh $<TARGET_FILE:gpt2_parity>)
set_tests_properties("parity: GPT-2 golden files" PROPERTIES LABELS parity TIMEOUT 60)
set_tests_properties("parity: GPT-2 beside PyTorch" PROPERTIES LABELS parity TIMEOUT 120 SKIP_RETURN_CODE 77)
