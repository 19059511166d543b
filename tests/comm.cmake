# comm: kernels and checks; collectives between threads and processes; what happens when a rank dies, stops or errs.
dtrun_test(test_comm_unit unit
  SOURCES unit/worker_runtime/comm/collective_test.cpp unit/worker_runtime/comm/reduce_test.cpp
          unit/worker_runtime/comm/origin_test.cpp unit/worker_runtime/comm/counting_group_test.cpp
  DEPS worker_runtime/comm)
dtrun_test(test_comm integration
  SOURCES integration/worker_runtime/comm/verbs_test.cpp integration/worker_runtime/comm/messages_test.cpp
          integration/worker_runtime/comm/failure_test.cpp integration/worker_runtime/comm/group_test.cpp
          integration/worker_runtime/comm/tcp_store_test.cpp integration/worker_runtime/comm/gloo_test.cpp
  DEPS worker_runtime/comm rendezvous/client rendezvous/server LINK dtrun_fmt TIMEOUT 120)

# The measuring programs of scripts/bench/comm.
add_executable(bench_comm ${CMAKE_SOURCE_DIR}/scripts/bench/comm/bench_comm.cpp)
target_link_libraries(bench_comm PRIVATE dtrun_worker_runtime_comm dtrun_fmt)
add_executable(gloo_ring ${CMAKE_SOURCE_DIR}/scripts/bench/comm/gloo_ring.cpp)
target_link_libraries(gloo_ring PRIVATE dtrun_flags gloo)
