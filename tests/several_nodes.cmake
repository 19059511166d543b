# dtrun on several nodes, each a network namespace (tests/several_nodes/README.md). Serial: they measure times. Most of them wait, so
# three of a group run at once, but not where every millisecond is looked at.
file(GLOB groups CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/several_nodes/cases/*.py)
foreach(path IN LISTS groups)
  get_filename_component(group ${path} NAME_WE)
  set(jobs 3)
  if(group STREQUAL "verdicts")
    set(jobs 1)
  endif()
  add_test(NAME "scenario: several nodes: ${group}"
           COMMAND python3 ${CMAKE_CURRENT_LIST_DIR}/several_nodes/several_nodes_test.py $<TARGET_FILE_DIR:dtrun> ${group} --jobs ${jobs})
  set_tests_properties("scenario: several nodes: ${group}" PROPERTIES LABELS scenario TIMEOUT 120 RUN_SERIAL TRUE SKIP_RETURN_CODE 77)
endforeach()
