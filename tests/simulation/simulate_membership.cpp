// simulate_membership [--seeds N] [--first SEED] [--plant no_fence|early_gone]: plays N histories of the membership.
// simulate_membership --seed SEED [--plant ...]: plays one and prints everything that happens.
// Exit code 1 and the command that replays it at the first history in which something is wrong.
#include <fmt/format.h>

#include <cstdlib>
#include <string>

#include "tests/simulation/membership_world.hpp"

using namespace dtrun::simulation;

namespace {

[[noreturn]] void usage(const std::string& what) {
  fmt::print(stderr, "simulate_membership: {}; see the head of simulate_membership.cpp\n", what);
  std::exit(2);
}

}  // namespace

int main(int argc, char* argv[]) {
  WorldOptions options;
  std::uint64_t first = 1, seeds = 1000;
  std::string plant;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) usage(name + " needs a value");
    const std::string value = argv[i + 1];
    if (name == "--plant") {
      plant = value;
      if (value != "no_fence" && value != "early_gone") usage("unknown plant " + value);
      options.plant = value == "no_fence" ? Plant::no_fence : Plant::early_gone;
      continue;
    }
    char* end = nullptr;
    const auto number = std::strtoull(value.c_str(), &end, 10);
    if (value.empty() || *end != '\0') usage(name + " needs a number");
    if (name == "--seeds") {
      seeds = number;
    } else if (name == "--first") {
      first = number;
    } else if (name == "--seed") {
      first = number;
      seeds = 1;
      options.trace = true;
    } else {
      usage("unknown option " + name);
    }
  }
  std::uint64_t messages = 0;
  for (auto seed = first; seed < first + seeds; ++seed) {
    options.seed = seed;
    World world(options);
    const auto wrong = world.run();
    messages += world.messages();
    if (!wrong) continue;
    fmt::print("seed {}: {}\nreplay: {} --seed {}{}\n", seed, *wrong, argv[0], seed,
               plant.empty() ? "" : " --plant " + plant);
    return 1;
  }
  fmt::print("{} histories, {} messages, nothing wrong\n", seeds, messages);
  return 0;
}
