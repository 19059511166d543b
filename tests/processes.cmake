# Tests of launcher/process, logs and report, and the built dtrun as a black box; included by tests/CMakeLists.txt.
add_executable(probe_worker ${CMAKE_CURRENT_LIST_DIR}/scenario/probe_worker.cpp)
target_link_libraries(probe_worker PRIVATE dtrun_flags)
add_executable(guarded_program ${CMAKE_CURRENT_LIST_DIR}/integration/launcher/process/guarded_program.cpp)
target_link_libraries(guarded_program PRIVATE dtrun_flags dtrun_launcher_process)
add_library(dtrun_test_job STATIC ${CMAKE_CURRENT_LIST_DIR}/scenario/job.cpp)
target_link_libraries(dtrun_test_job PUBLIC dtrun_flags dtrun_launcher_process)

# SERIAL, here and below: they look at timing.
dtrun_test(test_process integration SERIAL
  SOURCES unit/launcher/process/exit_status_test.cpp unit/launcher/process/job_mark_test.cpp integration/launcher/process/child_process_test.cpp
          integration/launcher/process/process_tree_test.cpp
  DEPS launcher/process LINK dtrun_test_job)
target_compile_definitions(test_process PRIVATE
  DTRUN_PROBE_WORKER="$<TARGET_FILE:probe_worker>" DTRUN_GUARDED_PROGRAM="$<TARGET_FILE:guarded_program>")
add_dependencies(test_process probe_worker guarded_program)
dtrun_test(test_logs integration SERIAL
  SOURCES unit/launcher/logs/line_splitter_test.cpp unit/launcher/logs/console_text_test.cpp
          integration/launcher/logs/output_hub_test.cpp
  DEPS launcher/logs LINK dtrun_test_job)
target_compile_definitions(test_logs PRIVATE DTRUN_PROBE_WORKER="$<TARGET_FILE:probe_worker>")
add_dependencies(test_logs probe_worker)
dtrun_test(test_report unit
  SOURCES unit/launcher/report/error_file_test.cpp unit/launcher/report/run_report_test.cpp
  DEPS launcher/report LINK dtrun_test_job nlohmann_json::nlohmann_json)

# The built dtrun as a black box; half of them kill something.
dtrun_test(test_scenario scenario SERIAL
  SOURCES scenario/survivors_test.cpp scenario/job_test.cpp scenario/ports_test.cpp scenario/command_line_test.cpp
          scenario/doctor_test.cpp scenario/output_test.cpp scenario/endurance_test.cpp scenario/stop_test.cpp scenario/memory_test.cpp
          scenario/unkillable_test.cpp scenario/surroundings_test.cpp scenario/snapshot_memory_test.cpp scenario/restart_cost_test.cpp
  LINK dtrun_test_job nlohmann_json::nlohmann_json TIMEOUT 90)
target_compile_definitions(test_scenario PRIVATE
  DTRUN_PROBE_WORKER="$<TARGET_FILE:probe_worker>" DTRUN_PROGRAM="$<TARGET_FILE:dtrun>")
add_dependencies(test_scenario probe_worker dtrun)

# What torchrun 2.15 did, scenario by scenario (tests/compat/README.md). Most of them wait: four run at once in each group.
file(GLOB compat_groups CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/compat/cases/*.py)
foreach(path IN LISTS compat_groups)
  get_filename_component(group ${path} NAME_WE)
  add_test(NAME "scenario: as torchrun: ${group}" COMMAND python3 ${CMAKE_CURRENT_LIST_DIR}/compat/compat_test.py $<TARGET_FILE:dtrun> ${group})
  set_tests_properties("scenario: as torchrun: ${group}" PROPERTIES LABELS scenario TIMEOUT 120 PROCESSORS 2)
endforeach()

# Nodes that come, go and are killed, as agents on this machine: with the bundled worker, and with PyTorch where it is. scripts/torch_elastic.sh: ten times.
foreach(kind IN ITEMS worker quick)
  foreach(case IN ITEMS join replace replace_lowest shrink_grow spare_ends failure)
    set(name "scenario: elastic, ${kind}: ${case}")
    add_test(NAME ${name} COMMAND python3 ${CMAKE_CURRENT_LIST_DIR}/scenario/elastic/elastic_test.py $<TARGET_FILE:dtrun> ${kind} ${case} --repeats 3)
    set_tests_properties(${name} PROPERTIES LABELS scenario TIMEOUT 60 PROCESSORS 2)
  endforeach()
endforeach()
add_test(NAME "integration: elastic, a PyTorch gloo job"
  COMMAND python3 ${CMAKE_CURRENT_LIST_DIR}/scenario/elastic/elastic_test.py $<TARGET_FILE:dtrun> torch)
set_tests_properties("integration: elastic, a PyTorch gloo job" PROPERTIES LABELS "integration;torch" TIMEOUT 300 SKIP_RETURN_CODE 77)
