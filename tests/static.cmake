# The static backend of several nodes.
dtrun_test(test_static_place unit SOURCES unit/rendezvous/static/static_place_test.cpp DEPS rendezvous/static)
dtrun_test(test_static integration SOURCES integration/static/static_test.cpp
  DEPS rendezvous/static LINK fmt::fmt-header-only Boost::headers)
