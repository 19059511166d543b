#include "rendezvous/base/error.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <system_error>

namespace dtrun {

Error::Error(std::string_view area, std::string_view text)
    : std::runtime_error(fmt::format("[{}] {}", area, text)), area_(area) {}

SystemError::SystemError(std::string_view area, std::string_view what, int error_number)
    : Error(area, fmt::format("{}: {} (errno {})", what, std::generic_category().message(error_number), error_number)),
      error_number_(error_number) {}

void throw_errno(std::string_view area, std::string_view what, int error_number) {
  throw SystemError(area, what, error_number);
}

void assertion_failed(const char* expression, const char* file, int line) noexcept {
  std::fprintf(stderr, "dtrun bug: assertion failed: %s (%s:%d)\n", expression, file, line);
  std::abort();
}

}  // namespace dtrun
