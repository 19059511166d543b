#include "launcher/cli/command_line.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "launcher/cli/help.hpp"
#include "launcher/cli/options.hpp"
#include "launcher/config/batch_system.hpp"
#include "launcher/config/grammar.hpp"
#include "rendezvous/base/error.hpp"

namespace dtrun::launcher {
namespace {

using Action = CommandLine::Action;

// torch's own variables below PET_<NAME>.
constexpr auto kShutdownTimeoutVariable = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
constexpr auto kPrefixTemplateVariable = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE";

[[noreturn]] void refuse(std::string_view text) { throw UsageError("cli", text); }

// -5 and -.5 are values or the program, never options: no option looks like a number.
bool is_negative_number(std::string_view text) {
  if (text.size() < 2 || text.front() != '-') return false;
  text.remove_prefix(1);
  const auto dots = std::count(text.begin(), text.end(), '.');
  return dots <= 1 && text.back() != '.' && text.find_first_not_of("0123456789.") == std::string_view::npos;
}

bool is_option_like(std::string_view text) {
  return text.size() >= 2 && text.front() == '-' && !is_negative_number(text);
}

// "--max-restarts" -> PET_MAX_RESTARTS
std::string variable_of(const Option& option) {
  std::string name = "PET_";
  for (const char c : option.name) name += c == '-' ? '_' : static_cast<char>(c - 'a' + 'A');
  return name;
}

bool is_choice(const Option& option, std::string_view text) {
  if (option.choices.empty()) return true;
  const auto padded = fmt::format("|{}|", option.choices);
  return text.find('|') == std::string_view::npos && padded.find(fmt::format("|{}|", text)) != std::string::npos;
}

struct Given {
  std::string label;
  std::string text;
};

// One pass over the arguments before the program.
class Scanner {
 public:
  explicit Scanner(std::span<const std::string> arguments) : arguments_(arguments) {}

  Action scan() {
    while (at_ < arguments_.size() && !answered()) {
      const std::string& word = arguments_[at_];
      if (word == "--" && !separator_seen_) {
        separator_seen_ = true;
        ++at_;
        if (at_ < arguments_.size()) take_program();
        break;
      }
      if (!is_option_like(word)) {
        take_program();
        break;
      }
      ++at_;
      if (word.starts_with("--")) {
        long_option(word);
      } else {
        cluster(word);
      }
    }
    return action_;
  }

  const std::map<const Option*, Given>& given() const { return given_; }
  std::string program;
  std::vector<std::string> rest;
  std::string answer;

 private:
  // Whoever asks for help wants it whatever follows.
  bool answered() const { return action_ == Action::answer; }

  void answer_with(std::string text) {
    action_ = Action::answer;
    answer = std::move(text);
  }

  void take_program() {
    program = arguments_[at_++];
    // A "--" directly after the program is dropped, unless one came before it.
    if (!separator_seen_ && at_ < arguments_.size() && arguments_[at_] == "--") ++at_;
    rest.assign(arguments_.begin() + static_cast<std::ptrdiff_t>(at_), arguments_.end());
  }

  void long_option(std::string_view word) {
    const auto equals = word.find('=');
    const auto spelling = word.substr(0, equals);
    const Option* option = find_option(spelling.substr(2));
    if (option == nullptr) unknown(spelling);
    if (!option->takes_value) {
      if (equals != std::string_view::npos)
        refuse(fmt::format("{} takes no value, but got \"{}\"", spelling, word.substr(equals + 1)));
      flag(*option, spelling);
    } else if (equals != std::string_view::npos) {
      value(*option, spelling, word.substr(equals + 1));
    } else {
      value(*option, spelling, next_value(spelling));
    }
  }

  // -r3, -r=3, -r 3, and flags in front of one valued option: -mr3.
  void cluster(std::string_view word) {
    for (std::size_t i = 1; i < word.size() && !answered(); ++i) {
      const Option* option = find_option(word[i]);
      const auto spelling = fmt::format("-{}", word[i]);
      if (option == nullptr) unknown(i == 1 ? word.substr(0, word.find('=')) : std::string_view(spelling));
      if (!option->takes_value) {
        if (i + 1 < word.size() && word[i + 1] == '=')
          refuse(fmt::format("{} takes no value, but got \"{}\"", spelling, word.substr(i + 2)));
        flag(*option, spelling);
        continue;
      }
      auto attached = word.substr(i + 1);
      if (attached.starts_with('=')) attached.remove_prefix(1);
      value(*option, spelling, i + 1 < word.size() ? std::string(attached) : next_value(spelling));
      return;
    }
  }

  std::string next_value(std::string_view spelling) {
    if (at_ >= arguments_.size() || is_option_like(arguments_[at_])) {
      refuse(fmt::format("{} needs a value{}", spelling,
                         at_ < arguments_.size() ? fmt::format(" (write {}={} if \"{}\" is meant)", spelling,
                                                               arguments_[at_], arguments_[at_])
                                                 : ""));
    }
    return arguments_[at_++];
  }

  void flag(const Option& option, std::string_view spelling) {
    if (option.name == "help") answer_with(help_text());
    if (option.name == "man") answer_with(man_text());
    if (option.name == "version") answer_with(version_text());
    if (option.name == "explain") action_ = Action::explain;
    given_[&option] = {std::string(spelling), "1"};
  }

  void value(const Option& option, std::string_view spelling, std::string_view text) {
    if (!is_choice(option, text)) {
      std::string choices(option.choices);
      std::replace(choices.begin(), choices.end(), '|', ' ');
      refuse(fmt::format("{} is \"{}\", expected one of: {}", spelling, text, choices));
    }
    if (option.name == "print-completion") answer_with(completion_text(text));
    given_[&option] = {std::string(spelling), std::string(text)};
  }

  [[noreturn]] void unknown(std::string_view spelling) {
    const auto suggestion = suggest_option(spelling);
    refuse(suggestion.empty() ? fmt::format("unknown option {} (dtrun --help lists all)", spelling)
                              : fmt::format("unknown option {}: did you mean {}?", spelling, suggestion));
  }

  std::span<const std::string> arguments_;
  std::size_t at_ = 0;
  bool separator_seen_ = false;
  Action action_ = Action::run;
  std::map<const Option*, Given> given_;
};

// PET_<NAME> of an option that is not on the command line.
std::optional<Given> from_environment(const Option& option, const EnvironmentLookup& environment) {
  if (!option.from_environment) return std::nullopt;
  auto name = variable_of(option);
  auto text = environment(name.c_str());
  if (!text) return std::nullopt;
  if (!option.takes_value) *text = std::string(1, parse_integer(name, *text) != 0 ? '1' : '0');
  return Given{std::move(name), std::move(*text)};
}

void apply_defaults_outside_the_table(CommandLine& line, const EnvironmentLookup& environment) {
  auto& config = line.config;
  if (config.stop.signals.empty() && config.stop.signals_text == StopOptions().signals_text) {
    config.stop.signals = parse_signals(config.stop.signals_text).known;
  }
  if (!config.stop.grace_seconds) {
    if (const auto text = environment(kShutdownTimeoutVariable))
      config.stop.grace_seconds = parse_integer(kShutdownTimeoutVariable, *text);
  }
  if (config.rendezvous.token_file.empty()) {
    config.rendezvous.token_file = environment(kTokenFileVariable).value_or("");
  }
  if (config.logs.line_prefix_template.empty()) {
    config.logs.line_prefix_template = environment(kPrefixTemplateVariable).value_or("");
  }
}

// What the batch system knows takes the place of defaults.
void apply_batch_system(CommandLine& line, const std::function<bool(std::string_view)>& given,
                        const EnvironmentLookup& environment) {
  auto batch = batch_values(line.config, given, environment);
  for (const auto& value : batch.values) {
    const Option* option = find_option(value.option);
    option->apply(line.config, OptionValue{value.text, value.source, line.warnings});
    for (auto& setting : line.settings) {
      if (std::string_view(setting.option).substr(2) != value.option) continue;
      setting.value = value.text;
      setting.source = value.source;
    }
  }
  line.warnings.insert(line.warnings.end(), batch.warnings.begin(), batch.warnings.end());
}

Setting setting_of(const Option& option, const std::optional<Given>& given, const EnvironmentLookup& environment) {
  Setting setting{fmt::format("--{}", option.name), std::string(option.initial),
                  option.initial.empty() ? "" : "default"};
  if (given) {
    setting.value = option.takes_value ? given->text : given->text == "1" ? "on" : "off";
    setting.source = given->label.starts_with('-') ? "command line" : given->label;
    return setting;
  }
  const auto* variable = option.name == "shutdown-timeout"           ? kShutdownTimeoutVariable
                         : option.name == "log-line-prefix-template" ? kPrefixTemplateVariable
                         : option.name == "rdzv-token-file"          ? kTokenFileVariable
                                                                     : nullptr;
  if (const auto text = variable != nullptr ? environment(variable) : std::nullopt) {
    setting.value = *text;
    setting.source = variable;
  } else if (!option.takes_value) {
    setting.value = "off";
    setting.source = "default";
  }
  return setting;
}

}  // namespace

CommandLine parse_command_line(std::span<const std::string> arguments, const EnvironmentLookup& environment) {
  CommandLine line;
  Scanner scanner(arguments);
  line.action = scanner.scan();
  line.answer = std::move(scanner.answer);
  if (line.action == Action::answer) return line;
  line.config.program = std::move(scanner.program);
  line.config.arguments = std::move(scanner.rest);
  bool module = false, no_python = false;
  std::set<std::string_view> given_names;
  for (const auto& option : option_table()) {
    if (option.apply == nullptr) continue;
    const auto found = scanner.given().find(&option);
    const auto given =
        found != scanner.given().end() ? std::optional(found->second) : from_environment(option, environment);
    if (line.action == Action::explain) line.settings.push_back(setting_of(option, given, environment));
    if (!given) continue;
    given_names.insert(option.name);
    option.apply(line.config, OptionValue{given->text, given->label, line.warnings});
    module = module || (option.name == "module" && given->text == "1");
    no_python = no_python || (option.name == "no-python" && given->text == "1");
  }
  if (module && no_python) refuse("--module and --no-python contradict each other: give one of them");
  apply_batch_system(
      line, [&](std::string_view name) { return given_names.contains(name); }, environment);
  apply_defaults_outside_the_table(line, environment);
  validate(line.config);
  if (kind_of(line.config) == JobKind::one_node) static_cast<void>(single_node_store(line.config));
  return line;
}

}  // namespace dtrun::launcher
