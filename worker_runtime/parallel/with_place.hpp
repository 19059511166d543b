// with_place(): errors that say where in a step they happened.
#pragma once

#include <fmt/format.h>

#include <string>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/tensor/tensor.hpp"

namespace dtrun::runtime {

// The same kind of error with `where` in front.
template <class E>
[[noreturn]] void throw_in(const std::string& where, const E& error) {
  const std::string text = error.what();
  const std::string prefix = fmt::format("[{}] ", error.area());
  throw E(error.area(), fmt::format("{}: {}", where, text.starts_with(prefix) ? text.substr(prefix.size()) : text));
}

// Calls `function`; what it throws is thrown again with where() in front. Errors of groups name rank and action
// themselves.
template <class Where, class Function>
void with_place(Where&& where, Function&& function) {
  try {
    function();
  } catch (const CommError&) {
    throw;
  } catch (const UsageError& error) {
    throw_in(where(), error);
  } catch (const ShapeError& error) {
    throw_in(where(), error);
  } catch (const AbstractTensorError& error) {
    throw_in(where(), error);
  } catch (const SystemError&) {
    throw;
  } catch (const Error& error) {
    throw_in(where(), error);
  }
}

}  // namespace dtrun::runtime
