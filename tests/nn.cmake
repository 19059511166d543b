# Tests of worker_runtime/autograd, nn, optim, checkpoint.
dtrun_test(test_checkpoint unit
  SOURCES unit/worker_runtime/checkpoint/safetensors_test.cpp
  DEPS worker_runtime/checkpoint LINK dtrun_fmt)
dtrun_test(test_nn unit
  SOURCES unit/worker_runtime/nn/nodes_test.cpp unit/worker_runtime/nn/gpt2_test.cpp unit/worker_runtime/nn/llama_test.cpp
    unit/worker_runtime/nn/model_test.cpp unit/worker_runtime/nn/parallelize_test.cpp
  DEPS worker_runtime/nn worker_runtime/checkpoint)
dtrun_test(test_tensor_parallel integration
  SOURCES integration/worker_runtime/nn/tensor_parallel_test.cpp
  DEPS worker_runtime/nn worker_runtime/checkpoint worker_runtime/comm TIMEOUT 120)
dtrun_test(test_optim unit
  SOURCES unit/worker_runtime/optim/optim_test.cpp unit/worker_runtime/optim/squares_on_device_test.cpp
  DEPS worker_runtime/optim)

# Parity: the numbers of PyTorch, from golden files and, where PyTorch is installed, live with fresh weights.
add_executable(model_parity parity/model_parity.cpp parity/expected.cpp)
target_link_libraries(model_parity PRIVATE dtrun_flags dtrun_fmt
  dtrun_worker_runtime_nn dtrun_worker_runtime_optim dtrun_worker_runtime_checkpoint)
add_executable(modes_parity parity/modes_parity.cpp parity/expected.cpp)
target_link_libraries(modes_parity PRIVATE dtrun_flags dtrun_fmt dtrun_worker_runtime_worker)
add_executable(logits parity/logits.cpp)
target_link_libraries(logits PRIVATE dtrun_flags dtrun_worker_runtime_worker)
set(data ${CMAKE_CURRENT_SOURCE_DIR}/data)
# parity_test(NAME [TIMEOUT s] COMMAND ...): skipped where there is no PyTorch but one is asked for.
function(parity_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "COMMAND" ${ARGN})
  add_test(NAME "parity: ${name}" COMMAND ${ARG_COMMAND})
  set_tests_properties("parity: ${name}" PROPERTIES LABELS parity TIMEOUT ${ARG_TIMEOUT} SKIP_RETURN_CODE 77)
endfunction()
set(live ${CMAKE_CURRENT_SOURCE_DIR}/parity/live.sh)
parity_test("GPT-2 golden files" TIMEOUT 60 COMMAND model_parity ${data}/parity)
parity_test("Llama golden files" TIMEOUT 60 COMMAND model_parity ${data}/parity_llama)
parity_test("GPT-2 beside PyTorch" TIMEOUT 120 COMMAND ${live} $<TARGET_FILE:model_parity> make_gpt2_golden.py)
parity_test("Llama beside PyTorch" TIMEOUT 120 COMMAND ${live} $<TARGET_FILE:model_parity> make_llama_golden.py)
parity_test("tied Llama beside PyTorch" TIMEOUT 120 COMMAND ${live} $<TARGET_FILE:model_parity> make_llama_golden.py --tied)
parity_test("scaled Llama beside PyTorch" TIMEOUT 120 COMMAND ${live} $<TARGET_FILE:model_parity> make_llama_golden.py --scaled)
# The parallel modes, by model: all in the golden files, live in groups, so that none takes a minute.
foreach(model gpt2 llama)
  parity_test("modes of ${model} golden files" TIMEOUT 120 COMMAND modes_parity ${data}/parity_modes_${model})
  foreach(group data split tensor pipeline)
    parity_test("${group} modes of ${model} beside PyTorch" TIMEOUT 120
      COMMAND ${live} $<TARGET_FILE:modes_parity> make_modes_golden.py ${model} --whole --group ${group})
  endforeach()
  # The errors of bf16 have a long tail: the same run every time.
  parity_test("bf16 modes of ${model} beside PyTorch" TIMEOUT 120
    COMMAND ${live} $<TARGET_FILE:modes_parity> make_modes_golden.py ${model} --whole --group bf16 --seed 1)
endforeach()
parity_test("transformers and dtrun read the models of each other" TIMEOUT 300
  COMMAND python3 ${CMAKE_SOURCE_DIR}/scripts/hf_check.py $<TARGET_FILE:dtrun> $<TARGET_FILE:dtrun-worker> $<TARGET_FILE:logits>)
set_property(TEST "parity: transformers and dtrun read the models of each other" APPEND PROPERTY LABELS torch)
