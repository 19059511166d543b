// dtrun-store: a c10d store by itself, and a command-line client for any.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "rendezvous/base/error.hpp"
#include "rendezvous/base/log.hpp"
#include "rendezvous/store_tool/commands.hpp"

namespace {

using namespace dtrun;
using namespace dtrun::rendezvous;

constexpr std::uint16_t kDefaultPort = 29500;

struct Arguments {
  std::string host = "127.0.0.1", endpoint = "127.0.0.1:29500", key, value;
  int port = kDefaultPort;
  bool only_2x = false;
  std::int64_t delta = 1, changes = 0;
  double timeout = 10, interval = 0.2;
  std::vector<std::string> keys;
  int code = 0;

  ClientCommand client() const { return {parse_endpoint(endpoint, kDefaultPort), milliseconds(timeout)}; }
  static std::chrono::milliseconds milliseconds(double seconds) {
    return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
  }
};

CLI::App* client_command(CLI::App& app, Arguments& a, const char* name, const char* text) {
  auto* command = app.add_subcommand(name, text);
  command->add_option("--endpoint", a.endpoint, "the store, host:port")->capture_default_str();
  command->add_option("--timeout", a.timeout, "seconds for connecting and for each wait")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  return command;
}

void describe(CLI::App& app, Arguments& a) {
  app.set_version_flag("--version", "dtrun-store " DTRUN_VERSION);
  app.require_subcommand(1);
  auto* serving = app.add_subcommand("serve", "run a store until it is stopped");
  serving->add_option("--port", a.port, "0: any free port")->check(CLI::Range(0, 65535))->capture_default_str();
  serving->add_option("--host", a.host, "the address to bind")->capture_default_str();
  serving->add_flag("--only-2x", a.only_2x, "refuse PyTorch 1.x clients and silent connections");
  serving->callback([&a] { a.code = serve(a.host, static_cast<std::uint16_t>(a.port), !a.only_2x); });

  auto* getting = client_command(app, a, "get", "wait for a key and print its value");
  getting->add_option("key", a.key)->required();
  getting->callback([&a] { a.code = print_value(a.client(), a.key); });

  auto* setting = client_command(app, a, "set", "write a key");
  setting->add_option("key", a.key)->required();
  setting->add_option("value", a.value)->required();
  setting->callback([&a] { a.code = set_value(a.client(), a.key, a.value); });

  auto* adding = client_command(app, a, "add", "add to a counter and print it");
  adding->add_option("key", a.key)->required();
  adding->add_option("delta", a.delta)->capture_default_str();
  adding->callback([&a] { a.code = add_to(a.client(), a.key, a.delta); });

  auto* listing = client_command(app, a, "list", "print all keys (servers of PyTorch 2.11 and later, and dtrun's)");
  listing->callback([&a] { a.code = list_keys(a.client()); });

  auto* watching = client_command(app, a, "watch", "print values as they change");
  watching->add_option("keys", a.keys, "all keys when none is named");
  watching->add_option("--interval", a.interval, "seconds between looks")
      ->check(CLI::Range(0.001, 1e6))
      ->capture_default_str();
  watching->add_option("--changes", a.changes, "end after so many lines; 0: never")->capture_default_str();
  watching->callback([&a] { a.code = watch(a.client(), a.keys, Arguments::milliseconds(a.interval), a.changes); });
}

// CLI11 only says that a subcommand is missing when the first word is not one.
std::string usage_text(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  if (dynamic_cast<const CLI::RequiredError*>(&error) == nullptr || !app.get_subcommands().empty() || argc < 2) {
    return error.what();
  }
  std::string names;
  for (const auto* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  return fmt::format("unknown command \"{}\", expected one of {}", argv[1], names);
}

// What was printed must have arrived: a full disk or a closed pipe is a failure, not a value.
int finish_output(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  std::fprintf(stderr, "dtrun-store: [store] the answer could not be written: %s\n", std::strerror(errno));
  return code == 0 ? 1 : code;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("A c10d store by itself, and a client for any c10d store.", "dtrun-store");
  try {
    log::setup({log::level_from_environment(log::Level::warning), ""});
    describe(app, arguments);
    app.parse(argc, argv);
    return finish_output(arguments.code);
  } catch (const CLI::Success& success) {  // --help, --version
    return finish_output(app.exit(success));
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "dtrun-store: %s\nRun with --help for more information.\n",
                 usage_text(app, error, argc, argv).c_str());
    return 2;
  } catch (const UsageError& error) {
    std::fprintf(stderr, "dtrun-store: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "dtrun-store: %s\n", error.what());
    return 1;
  }
}
