#include <fmt/format.h>

#include <algorithm>

#include "launcher/cli/help.hpp"
#include "launcher/cli/options.hpp"

namespace dtrun::launcher {
namespace {

std::string spellings(bool valued_only) {
  std::string words;
  for (const auto& option : option_table()) {
    if (valued_only && !option.takes_value) continue;
    words += fmt::format("{}--{}", words.empty() ? "" : " ", option.name);
    if (option.letter != 0) words += fmt::format(" -{}", option.letter);
  }
  return words;
}

std::string choices_of(const Option& option) {
  std::string words(option.choices);
  std::replace(words.begin(), words.end(), '|', ' ');
  return words;
}

// Options up to the program, then files: what follows the program is its own. bash hands over "--a=b" as three words,
// zsh as one.
constexpr auto kFunction = R"sh(_dtrun() {{
  local options="{options}" valued=" {valued} "
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" prefix= i
  COMPREPLY=()
  if [[ $word == = ]]; then word=; elif [[ $before == = ]]; then before="${{COMP_WORDS[COMP_CWORD-2]}}"; fi
  case $word in --*=*) before="${{word%%=*}}" prefix="${{word%%=*}}=" word="${{word#*=}}" ;; esac
  for ((i = 1; i < COMP_CWORD; i++)); do
    case ${{COMP_WORDS[i]}} in
      =) ;;
      -*) if [[ $valued == *" ${{COMP_WORDS[i]}} "* ]]; then
            ((i++))
            if [[ ${{COMP_WORDS[i]}} == = ]]; then ((i++)); fi
          fi ;;
      *) COMPREPLY=($(compgen -f -- "$word")); return ;;
    esac
  done
  case $before in
{choices}  esac
  if [[ $valued == *" $before "* ]]; then COMPREPLY=($(compgen -f -P "$prefix" -- "$word"))
  elif [[ $word == -* ]]; then COMPREPLY=($(compgen -W "$options" -- "$word"))
  else COMPREPLY=($(compgen -f -- "$word") $(compgen -c -- "$word")); fi
}}
complete -F _dtrun dtrun
)sh";

std::string bash() {
  std::string choices;
  for (const auto& option : option_table()) {
    if (option.choices.empty()) continue;
    choices += fmt::format("    --{}) COMPREPLY=($(compgen -P \"$prefix\" -W \"{}\" -- \"$word\")); return ;;\n",
                           option.name, choices_of(option));
  }
  return fmt::format(kFunction, fmt::arg("options", spellings(false)), fmt::arg("valued", spellings(true)),
                     fmt::arg("choices", choices));
}

std::string tcsh() {
  std::string words, values;
  for (const auto& option : option_table()) {
    words += fmt::format("{}{}", words.empty() ? "" : " ", option.name);
    if (!option.choices.empty()) values += fmt::format(" 'n/--{}/({})/'", option.name, choices_of(option));
  }
  return fmt::format("complete dtrun{} 'c/--/({})/' 'p/*/f/'\n", values, words);
}

}  // namespace

std::string completion_text(std::string_view shell) {
  if (shell == "tcsh") return tcsh();
  if (shell == "zsh") return "autoload -U +X bashcompinit && bashcompinit\n" + bash();
  return bash();
}

}  // namespace dtrun::launcher
