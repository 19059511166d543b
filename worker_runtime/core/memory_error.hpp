// Memory ran out.
#pragma once

#include "rendezvous/base/error.hpp"

namespace dtrun::runtime {

// An allocation failed; says what was held, or how much was free.
class MemoryError : public Error {
  using Error::Error;
};

}  // namespace dtrun::runtime
