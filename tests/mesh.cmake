# mesh: layouts and plans as values; redistribution between ranks as threads.
dtrun_test(test_mesh_unit unit
  SOURCES unit/worker_runtime/mesh/mesh_shape_test.cpp unit/worker_runtime/mesh/layout_test.cpp
          unit/worker_runtime/mesh/plan_test.cpp
  DEPS worker_runtime/mesh)
dtrun_test(test_mesh integration
  SOURCES integration/worker_runtime/mesh/device_mesh_test.cpp integration/worker_runtime/mesh/dtensor_test.cpp
          integration/worker_runtime/mesh/redistribute_node_test.cpp
  DEPS worker_runtime/mesh LINK dtrun_fmt TIMEOUT 120)
