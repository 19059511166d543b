# The membership of several nodes: tables, sockets, and simulated worlds: many seeds in CI, and two planted mistakes that must be found.
add_executable(simulate_membership
  simulation/simulate_membership.cpp simulation/membership_world.cpp simulation/membership_faults.cpp)
target_link_libraries(simulate_membership PRIVATE dtrun_flags dtrun_rendezvous_membership dtrun_fmt)
if(DTRUN_SANITIZE)
  set(DTRUN_EXPLORE_LIMIT --states 100000)  # all of them would take ten minutes
endif()
add_executable(explore_membership simulation/explore_membership.cpp)
target_link_libraries(explore_membership PRIVATE dtrun_flags dtrun_rendezvous_membership dtrun_fmt)
# g++ 12 suspects every std::variant that is moved into a container.
target_compile_options(explore_membership PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
add_test(NAME "simulation: 50000 histories of the membership" COMMAND simulate_membership --seeds 50000)
set_tests_properties("simulation: 50000 histories of the membership" PROPERTIES LABELS unit TIMEOUT 300)
foreach(plant IN ITEMS no_fence early_gone)
  add_test(NAME "simulation: the planted mistake ${plant} is found" COMMAND simulate_membership --seeds 20000 --plant ${plant})
  set_tests_properties("simulation: the planted mistake ${plant} is found" PROPERTIES LABELS unit TIMEOUT 120
    PASS_REGULAR_EXPRESSION "replay: .*--plant ${plant}")
endforeach()
add_test(NAME "simulation: every history of three agents over two rounds" COMMAND explore_membership ${DTRUN_EXPLORE_LIMIT})
set_tests_properties("simulation: every history of three agents over two rounds" PROPERTIES LABELS unit TIMEOUT 600)
# With failures that count when the other nodes have been heard of: one crash, or there would be too many.
add_test(NAME "simulation: every history with confirmed failures" COMMAND explore_membership --confirm 250 --crashes 1 ${DTRUN_EXPLORE_LIMIT})
set_tests_properties("simulation: every history with confirmed failures" PROPERTIES LABELS unit TIMEOUT 600)
add_test(NAME "simulation: the explorer finds a planted mistake" COMMAND explore_membership --plant early_gone)
set_tests_properties("simulation: the explorer finds a planted mistake" PROPERTIES LABELS unit TIMEOUT 120
  PASS_REGULAR_EXPRESSION "before its workers are gone")
dtrun_test(test_membership unit
  SOURCES unit/rendezvous/membership/rank_order_test.cpp unit/rendezvous/membership/coordinator_test.cpp
          unit/rendezvous/membership/member_test.cpp unit/rendezvous/membership/message_text_test.cpp
          unit/rendezvous/membership/hostile_text_test.cpp
          unit/rendezvous/coordinator/handshake_test.cpp unit/rendezvous/coordinator/job_token_test.cpp
  DEPS rendezvous/coordinator)
dtrun_test(test_membership_network integration
  SOURCES integration/membership/membership_test.cpp integration/membership/entrance_test.cpp integration/membership/link_test.cpp
          integration/membership/host_gone_test.cpp
  DEPS rendezvous/coordinator rendezvous/server LINK Boost::headers)

# PyTorch's agents at our coordinator, and the other way round.
add_executable(coordinator_probe integration/membership/coordinator_probe.cpp)
target_link_libraries(coordinator_probe PRIVATE dtrun_flags dtrun_rendezvous_coordinator Boost::headers)
if(DEFINED ENV{DTRUN_TORCH_PYTHON})
  set(torch_python $ENV{DTRUN_TORCH_PYTHON})
else()
  set(torch_python $ENV{HOME}/.cache/dtrun-torch/bin/python)
endif()
add_test(NAME "parity: a coordinator and PyTorch's agents"
  COMMAND python3 ${CMAKE_CURRENT_SOURCE_DIR}/integration/membership/torch_strangers_test.py ${torch_python} $<TARGET_FILE:coordinator_probe>)
set_tests_properties("parity: a coordinator and PyTorch's agents" PROPERTIES LABELS parity TIMEOUT 240 SKIP_RETURN_CODE 77)
