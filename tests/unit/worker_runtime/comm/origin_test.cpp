// Which address a rank of the Gloo backend is reached under.
#include "tests/catch.hpp"

#include <cstdlib>
#include <map>

#include "rendezvous/base/error.hpp"
#include "worker_runtime/comm/gloo/origin.hpp"

using namespace dtrun;
using namespace dtrun::runtime::gloo;
using Catch::Contains;

namespace {

Origin on(const std::string& host, const std::string& address, bool chosen = false) {
  return {.host = host, .host_name = host, .pid = 1, .address = address, .chosen = chosen};
}

std::vector<std::string> choices(const std::vector<Origin>& origins,
                                 const std::map<std::string, std::string>& routes = {}) {
  std::vector<std::string> result;
  for (int rank = 0; rank < static_cast<int>(origins.size()); ++rank) {
    result.push_back(choose_address(origins, rank, [&](const std::string& peer) {
      const auto found = routes.find(peer);
      return found == routes.end() ? std::string() : found->second;
    }));
  }
  return result;
}

using Addresses = std::vector<std::string>;

}  // namespace

TEST_CASE("ranks of one host may use loopback, all of them or none") {
  CHECK(choices({on("a", "127.0.0.1"), on("a", "127.0.0.1")}) == Addresses{"127.0.0.1", "127.0.0.1"});
  CHECK(choices({on("a", "127.0.0.1"), on("a", "10.0.0.1")}) == Addresses{"10.0.0.1", "10.0.0.1"});
  CHECK(choices({on("a", "127.0.0.1", true), on("a", "127.0.0.1")}) == Addresses{"127.0.0.1", "127.0.0.1"});
}

TEST_CASE("over several hosts loopback gives way to the address towards another host") {
  CHECK(choices({on("a", "10.0.0.1"), on("b", "10.0.0.2")}) == Addresses{"10.0.0.1", "10.0.0.2"});
  // The store runs on host a, whose own ranks reach it over loopback.
  CHECK(choices({on("a", "127.0.0.1"), on("a", "127.0.1.1"), on("b", "10.0.0.2")}, {{"10.0.0.2", "10.0.0.1"}}) ==
        Addresses{"10.0.0.1", "10.0.0.1", "10.0.0.2"});
  CHECK(choices({on("a", "::1"), on("b", "fd00::2")}, {{"fd00::2", "fd00::1"}}) == Addresses{"fd00::1", "fd00::2"});
}

TEST_CASE("all ranks use one family, that of the first address that others can reach") {
  CHECK(choices({on("a", "10.0.0.1"), on("b", "fd00::2")}, {{"10.0.0.1", "10.0.0.2"}}) ==
        Addresses{"10.0.0.1", "10.0.0.2"});
}

TEST_CASE("an interface that the user names is used, and refused when others cannot reach it") {
  CHECK(choices({on("a", "192.168.7.1", true), on("b", "10.0.0.2")}) == Addresses{"192.168.7.1", "10.0.0.2"});
  CHECK_THROWS_WITH(choices({on("a", "127.0.0.1", true), on("b", "10.0.0.2")}), Contains("GLOO_SOCKET_IFNAME"));
}

TEST_CASE("no way to the others is an error that says what to set") {
  CHECK_THROWS_WITH(
      choices({on("a", "127.0.0.1"), on("b", "127.0.0.1")}),
      Contains("rank 0 on a has no address that ranks on other hosts can reach") && Contains("GLOO_SOCKET_IFNAME"));
  CHECK_THROWS_WITH(choices({on("a", "127.0.0.1"), on("b", "10.0.0.2")}, {{"10.0.0.2", "127.0.0.1"}}),
                    Contains("rank 0 on a has no address"));
}

TEST_CASE("an origin survives the store, anything else is refused") {
  const Origin origin = on("boot/net:[4026531840]", "10.0.0.1", true);
  const Origin back = Origin::decode(origin.encode());
  CHECK(back.host == origin.host);
  CHECK(back.address == origin.address);
  CHECK(back.chosen);
  for (const char* text : {"", "dtrun-gloo-1", "dtrun-gloo-1 a b x 10.0.0.1 0", "GET / HTTP/1.1"})
    CHECK_THROWS_AS(Origin::decode(text), CommError);
}

TEST_CASE("this machine: loopback leads to loopback, interfaces have addresses, unknown ones are refused") {
  CHECK(address_towards("127.0.0.1") == "127.0.0.1");
  CHECK(address_towards("no-number.example") == "");
  CHECK(address_of_interface("lo") == "127.0.0.1");
  CHECK_THROWS_WITH(address_of_interface("nosuch0"), Contains("\"nosuch0\"") && Contains("lo"));
  ::setenv("GLOO_SOCKET_IFNAME", "lo,eth7", 1);
  const Origin here = Origin::here("192.0.2.9");
  ::unsetenv("GLOO_SOCKET_IFNAME");
  CHECK(here.address == "127.0.0.1");
  CHECK(here.chosen);
  CHECK(Origin::here("::ffff:10.1.2.3").address == "10.1.2.3");
  CHECK(Origin::here("").address == "127.0.0.1");
}
