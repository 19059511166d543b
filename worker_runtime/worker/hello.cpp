#include <fmt/format.h>

#include "worker_runtime/worker/commands.hpp"
#include "worker_runtime/worker/session.hpp"

namespace dtrun::runtime {

void run_hello(const WorkerEnvironment& environment, const DeviceOptions& options) {
  SessionOptions session_options;
  session_options.backend = options.backend;
  with_session(environment, session_options, choose_device(options, environment), [](Session& session) {
    session.print_map();
    session.group().set_action("hello");
    session.group().barrier();
    if (session.is_first()) fmt::print("all ranks met at the barrier\n");
  });
}

}  // namespace dtrun::runtime
