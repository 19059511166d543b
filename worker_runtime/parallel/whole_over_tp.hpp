// WholeOverTp: while it lives, every parameter that tensor parallelism cuts is bound whole, on every rank of the axis.
#pragma once

#include <span>
#include <vector>

#include "worker_runtime/comm/process_group.hpp"
#include "worker_runtime/nn/parameter.hpp"

namespace dtrun::runtime {

// Made while the ranks' parts are bound; binds them again at its end. Construction is collective over `group` and
// gathers one parameter after the other.
class WholeOverTp {
 public:
  WholeOverTp(std::span<Parameter* const> parameters, ProcessGroup& group, Arena& arena);
  WholeOverTp(const WholeOverTp&) = delete;
  WholeOverTp& operator=(const WholeOverTp&) = delete;
  ~WholeOverTp();
  // From the whole values into this rank's parts.
  void take_back() const;

 private:
  struct Held {
    Parameter* parameter;
    Tensor part;
  };
  std::vector<Held> held_;
};

}  // namespace dtrun::runtime
