# Tests of rendezvous/wire, store, server, client and store_tool.
dtrun_test(test_store unit
  SOURCES unit/rendezvous/wire/request_parser_test.cpp unit/rendezvous/store/key_space_test.cpp
          unit/rendezvous/store/stores_test.cpp
  DEPS rendezvous/wire rendezvous/store LINK fmt::fmt-header-only)
