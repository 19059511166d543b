// Only there to build the precompiled tests/catch.hpp.
