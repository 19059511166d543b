# launcher: configuration, command line, agent.
dtrun_test(test_launcher_config unit
  SOURCES unit/launcher/config/grammar_test.cpp unit/launcher/config/hostlist_test.cpp unit/launcher/config/batch_system_test.cpp unit/launcher/cli/command_line_test.cpp
  DEPS launcher/cli launcher/config)
dtrun_test(test_launcher_agent unit
  SOURCES unit/launcher/agent/decide_test.cpp unit/launcher/agent/program_test.cpp unit/launcher/agent/place_test.cpp
          unit/launcher/agent/memory_cgroup_test.cpp unit/launcher/agent/stale_directories_test.cpp unit/launcher/agent/numa_test.cpp
          unit/launcher/agent/token_option_test.cpp unit/launcher/agent/restart_clock_test.cpp
  DEPS launcher/agent LINK dtrun_test_job)
dtrun_test(test_dtrun integration SERIAL
  SOURCES integration/launcher/agent/dtrun_test.cpp integration/launcher/agent/told_test.cpp
          integration/launcher/agent/policy_test.cpp integration/launcher/agent/token_test.cpp
  LINK dtrun_test_job nlohmann_json::nlohmann_json)
target_compile_definitions(test_dtrun PRIVATE DTRUN_PROGRAM="$<TARGET_FILE:dtrun>")
add_dependencies(test_dtrun dtrun)

# scripts/slurm and scripts/kubernetes.
foreach(which IN ITEMS slurm kubernetes)
  add_test(NAME "integration: the ${which} example" COMMAND python3 ${CMAKE_CURRENT_SOURCE_DIR}/integration/launcher/examples_test.py ${which} $<TARGET_FILE:dtrun>)
  set_tests_properties("integration: the ${which} example" PROPERTIES LABELS integration TIMEOUT 60 SKIP_RETURN_CODE 77)
endforeach()

# Unchanged PyTorch programs: the newest PyTorch (scripts/setup_torch.sh) and Debian's.
foreach(which IN ITEMS default /usr/bin/python3)
  foreach(case IN ITEMS ddp script module wrapper record recover)
    set(name "integration: an unchanged PyTorch program runs under dtrun: ${case} (${which})")
    add_test(NAME ${name} COMMAND python3 ${CMAKE_CURRENT_SOURCE_DIR}/integration/torch/torch_test.py ${case} $<TARGET_FILE:dtrun> ${which})
    set_tests_properties(${name} PROPERTIES LABELS "integration;torch" TIMEOUT 240 SKIP_RETURN_CODE 77)
  endforeach()
endforeach()
