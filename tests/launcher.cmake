# launcher: configuration, command line, agent.
dtrun_test(test_launcher_config unit
  SOURCES unit/launcher/config/grammar_test.cpp unit/launcher/cli/command_line_test.cpp
  DEPS launcher/cli launcher/config)
dtrun_test(test_launcher_agent unit
  SOURCES unit/launcher/agent/decide_test.cpp unit/launcher/agent/program_test.cpp unit/launcher/agent/place_test.cpp
  DEPS launcher/agent)
