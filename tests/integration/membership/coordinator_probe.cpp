// coordinator_probe serve: a coordinator by itself, prints "listening PORT" and its notes; ends with its standard
// input. coordinator_probe join HOST PORT: an agent, prints the verdict.
#include <poll.h>
#include <boost/asio/io_context.hpp>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "rendezvous/coordinator/coordinator_server.hpp"
#include "rendezvous/coordinator/membership_client.hpp"

using namespace dtrun;
using namespace dtrun::rendezvous;

namespace {

void show(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

int serve() {
  boost::asio::io_context io{1};
  JobRules rules;
  rules.job = "job";
  const CoordinatorServer server(io, rules, "127.0.0.1", 0, {show, [] {}});
  show("listening " + std::to_string(server.port()));
  for (pollfd input{0, POLLIN, 0}; ::poll(&input, 1, 0) == 0;) io.run_for(std::chrono::milliseconds(20));
  return 0;
}

int join(const char* host, const char* port) {
  boost::asio::io_context io{1};
  int code = -1;
  MembershipOrders orders;
  orders.exit = [&](const Verdict& end) {
    show(end.text);
    code = end.exit_code;
  };
  MembershipClient client(io, Hello{.job = "job", .node = "n", .address = "", .node_rank = {}},
                          {host, static_cast<std::uint16_t>(std::atoi(port))}, std::chrono::seconds(30), orders);
  client.join();
  while (code < 0) io.run_for(std::chrono::milliseconds(20));
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "serve") == 0) return serve();
  if (argc == 4 && std::strcmp(argv[1], "join") == 0) return join(argv[2], argv[3]);
  return 2;
}
