# The static backend of several nodes.
dtrun_test(test_static_place unit SOURCES unit/rendezvous/static/static_place_test.cpp DEPS rendezvous/static)
dtrun_test(test_static_nodes scenario SOURCES scenario/static_nodes_test.cpp
  DEPS rendezvous/base LINK dtrun_test_job dtrun_fmt)
target_compile_definitions(test_static_nodes PRIVATE DTRUN_PROGRAM="$<TARGET_FILE:dtrun>")
add_dependencies(test_static_nodes dtrun)
dtrun_test(test_static integration SOURCES integration/static/static_test.cpp integration/static/node_0_gone_test.cpp
  DEPS rendezvous/static LINK dtrun_fmt Boost::headers)
foreach(which IN ITEMS torchrun_hosts dtrun_hosts)
  add_test(NAME "integration: a static job with torchrun as the other node: ${which}"
    COMMAND python3 ${CMAKE_CURRENT_SOURCE_DIR}/integration/torch/static_nodes_test.py $<TARGET_FILE:dtrun> ${which})
  set_tests_properties("integration: a static job with torchrun as the other node: ${which}" PROPERTIES
    LABELS "integration;torch" TIMEOUT 180 SKIP_RETURN_CODE 77)
endforeach()
