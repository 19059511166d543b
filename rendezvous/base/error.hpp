// The error tree of all of dtrun. Expected outcomes are values; an exception ends a unit of work (a session, a round, a run).
// A message reads `[area] what failed: "value", expected X`: what came, what was expected, where to look.
#pragma once

#include <cerrno>
#include <stdexcept>
#include <string>
#include <string_view>

namespace dtrun {

class Error : public std::runtime_error {
 public:
  // `area` is the part of dtrun that speaks ("store", "launcher", "comm"); `text` says what failed.
  Error(std::string_view area, std::string_view text);
  const std::string& area() const noexcept { return area_; }

 private:
  std::string area_;
};

// The user asked for something impossible or misspelt: exit code 2.
class UsageError : public Error {
  using Error::Error;
};
// A store or coordinator could not be reached, spoke nonsense, or went away.
class RendezvousError : public Error {
  using Error::Error;
};
// A wait had a deadline and the deadline passed.
class TimeoutError : public RendezvousError {
  using RendezvousError::RendezvousError;
};
// A collective failed: the state of the process group is unknown, drop it and rendezvous again.
class CommError : public Error {
  using Error::Error;
};
// Tensors do not fit together, or a parameter has an impossible shape.
class ShapeError : public Error {
  using Error::Error;
};
// The operating system refused; keeps the errno.
class SystemError : public Error {
 public:
  SystemError(std::string_view area, std::string_view what, int error_number);
  int error_number() const noexcept { return error_number_; }

 private:
  int error_number_;
};

// The one place where errno becomes an exception.
[[noreturn]] void throw_errno(std::string_view area, std::string_view what, int error_number = errno);

// Reports a bug of ours (never reachable by a peer, a user or a file) and aborts.
[[noreturn]] void assertion_failed(const char* expression, const char* file, int line) noexcept;

}  // namespace dtrun

// Stays on in release builds: the conditions are cheap, wrong numbers are not.
#define DTRUN_ASSERT(condition) \
  ((condition) ? static_cast<void>(0) : ::dtrun::assertion_failed(#condition, __FILE__, __LINE__))
