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
add_executable(model_parity parity/model_parity.cpp)
target_link_libraries(model_parity PRIVATE dtrun_flags fmt::fmt-header-only
  dtrun_worker_runtime_nn dtrun_worker_runtime_optim dtrun_worker_runtime_checkpoint)
set(live ${CMAKE_CURRENT_SOURCE_DIR}/parity/live.sh $<TARGET_FILE:model_parity>)
add_test(NAME "parity: GPT-2 golden files" COMMAND model_parity ${CMAKE_CURRENT_SOURCE_DIR}/data/parity)
add_test(NAME "parity: GPT-2 beside PyTorch" COMMAND ${live} make_gpt2_golden.py)
add_test(NAME "parity: Llama golden files" COMMAND model_parity ${CMAKE_CURRENT_SOURCE_DIR}/data/parity_llama)
add_test(NAME "parity: Llama beside PyTorch" COMMAND ${live} make_llama_golden.py)
add_test(NAME "parity: tied Llama beside PyTorch" COMMAND ${live} make_llama_golden.py --tied)
add_test(NAME "parity: scaled Llama beside PyTorch" COMMAND ${live} make_llama_golden.py --scaled)
set_tests_properties("parity: GPT-2 golden files" "parity: Llama golden files" PROPERTIES LABELS parity TIMEOUT 60)
set_tests_properties("parity: GPT-2 beside PyTorch" "parity: Llama beside PyTorch" "parity: tied Llama beside PyTorch"
  "parity: scaled Llama beside PyTorch"
  PROPERTIES LABELS parity TIMEOUT 120 SKIP_RETURN_CODE 77)
