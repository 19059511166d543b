# Tests of rendezvous/wire, store, server, client and store_tool.
dtrun_test(test_store unit
  SOURCES unit/rendezvous/wire/request_parser_test.cpp unit/rendezvous/store/key_space_test.cpp
          unit/rendezvous/store/stores_test.cpp
  DEPS rendezvous/wire rendezvous/store LINK dtrun_fmt)

dtrun_test(test_store_server integration
  SOURCES integration/store/fixture.cpp integration/store/vectors_test.cpp integration/store/limits_test.cpp
          integration/store/client_test.cpp integration/store/history_test.cpp
  DEPS rendezvous/server rendezvous/client LINK nlohmann_json::nlohmann_json dtrun_fmt)
target_compile_definitions(test_store_server PRIVATE
  DTRUN_TEST_DATA="${CMAKE_CURRENT_SOURCE_DIR}/data" DTRUN_STORE_TOOL="$<TARGET_FILE:dtrun-store>")
add_dependencies(test_store_server dtrun-store)

add_test(NAME "integration: dtrun-store" COMMAND python3 ${CMAKE_CURRENT_SOURCE_DIR}/integration/store/store_tool_test.py $<TARGET_FILE:dtrun-store>)
set_tests_properties("integration: dtrun-store" PROPERTIES LABELS integration TIMEOUT 60)

# A million executions: scripts/fuzz.sh. Here short runs, so that the targets cannot rot.
foreach(target IN ITEMS store membership)
  add_test(NAME "fuzz: ${target}" COMMAND ${CMAKE_SOURCE_DIR}/scripts/fuzz.sh ${target} 20000)
  set_tests_properties("fuzz: ${target}" PROPERTIES LABELS fuzz TIMEOUT 400 SKIP_RETURN_CODE 77
    ENVIRONMENT "DTRUN_FUZZ_DIR=${CMAKE_BINARY_DIR}/fuzz")
endforeach()

# PyTorch's client against our server and our client against PyTorch's server: the newest torch, and Debian's when python3-torch is installed.
add_executable(store_torch_probe integration/store/torch_probe.cpp)
target_link_libraries(store_torch_probe PRIVATE dtrun_flags dtrun_rendezvous_client)
if(DEFINED ENV{DTRUN_TORCH_PYTHON})
  set(torch_python $ENV{DTRUN_TORCH_PYTHON})
else()
  set(torch_python $ENV{HOME}/.cache/dtrun-torch/bin/python)
endif()
foreach(kind newest debian)
  add_test(NAME "parity: store with PyTorch (${kind})"
    COMMAND python3 ${CMAKE_CURRENT_SOURCE_DIR}/integration/store/torch_store_test.py
            $<IF:$<STREQUAL:${kind},newest>,${torch_python},/usr/bin/python3> $<TARGET_FILE:dtrun-store> $<TARGET_FILE:store_torch_probe>)
  set_tests_properties("parity: store with PyTorch (${kind})" PROPERTIES LABELS parity TIMEOUT 240 SKIP_RETURN_CODE 77)
endforeach()
