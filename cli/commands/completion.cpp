#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "cli/commands/commands.hpp"
#include "cli/support/flag_set.hpp"
#include "cli/support/streams.hpp"
#include "cli/support/text.hpp"

namespace headwater::cli {
namespace {

constexpr std::string_view kBash =
    R"(# Completion of headwater for bash, printed by `headwater completion bash`.
_headwater() {
  local current=${COMP_WORDS[COMP_CWORD]} words=
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    words='@COMMANDS@ --help --version'
  else
    case ${COMP_WORDS[1]} in
      help | man) ((COMP_CWORD == 2)) && words='@COMMANDS@' ;;
      completion) ((COMP_CWORD == 2)) && words='bash zsh' ;;
@FLAGS@    esac
    if [[ $current != -* && ${COMP_WORDS[1]} != @(help|man|completion) ]]; then
      mapfile -t COMPREPLY < <(compgen -f -- "$current")
      return
    fi
  fi
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}
complete -o filenames -F _headwater headwater
)";

constexpr std::string_view kZsh = R"(#compdef headwater
# Completion of headwater for zsh, printed by `headwater completion zsh`.
_headwater() {
  local -a commands flags
  commands=(
@COMMANDS@  )
  if ((CURRENT == 2)); then
    _describe command commands
    return
  fi
  case $words[2] in
    help | man) ((CURRENT == 3)) && _describe command commands && return ;;
    completion) ((CURRENT == 3)) && compadd bash zsh && return ;;
@FLAGS@  esac
  if [[ $PREFIX == -* ]]; then
    _describe -o flag flags
  else
    _files
  fi
}
_headwater "$@"
)";

std::string replaced(std::string_view text, std::string_view mark, const std::string& content) {
  std::string result;
  for (auto at = text.find(mark); at != std::string_view::npos; at = text.find(mark)) {
    result += fmt::format("{}{}", text.substr(0, at), content);
    text.remove_prefix(at + mark.size());
  }
  return result + std::string(text);
}

/// Every flag of every form, once.
std::vector<Flag> flags_of(const std::string& command) {
  std::vector<Flag> flags;
  for (const CommandForm& form : command_forms(command)) {
    for (const Flag& flag : form.flags) {
      const bool known = std::any_of(flags.begin(), flags.end(),
                                     [&](const Flag& other) { return other.names == flag.names; });
      if (!flag.positional && !known) flags.push_back(flag);
    }
  }
  return flags;
}

/// Between single quotes, for both shells.
std::string quoted(const std::string& text) { return fmt::format("'{}'", replaced(text, "'", "'\\''")); }

std::string bash_text(const std::vector<CommandLine>& commands) {
  std::string names;
  std::string cases;
  for (const CommandLine& command : commands) {
    names += fmt::format("{}{}", names.empty() ? "" : " ", command.name);
    std::string words;
    for (const Flag& flag : flags_of(command.name)) {
      for (const std::string& name : flag.names) words += fmt::format("{}{}", words.empty() ? "" : " ", name);
    }
    if (command.name != "help" && command.name != "completion" && command.name != "man")
      cases += fmt::format("      {}) words='{}' ;;\n", command.name, words);
  }
  return replaced(replaced(kBash, "@COMMANDS@", names), "@FLAGS@", cases);
}

std::string zsh_text(const std::vector<CommandLine>& commands) {
  std::string names;
  std::string cases;
  for (const CommandLine& command : commands) {
    names += fmt::format("    {}\n", quoted(command.name + ":" + command.help));
    std::string words;
    for (const Flag& flag : flags_of(command.name)) {
      for (const std::string& name : flag.names)
        words += fmt::format("      {}\n", quoted(name + ":" + flag.help));
    }
    if (command.name != "help" && command.name != "completion" && command.name != "man")
      cases += fmt::format("    {}) flags=(\n{}    ) ;;\n", command.name, words);
  }
  return replaced(replaced(kZsh, "@COMMANDS@", names), "@FLAGS@", cases);
}

}  // namespace

ExitCode completion_command(const std::vector<std::string>& arguments,
                            const std::vector<CommandLine>& commands) {
  bool bash = false;
  FlagSet set("Completion of commands and flags, for a shell to read.", "headwater completion",
              "\nExample: in this shell\n  source <(headwater completion bash)");
  set.choice("SHELL", "", "bash or zsh", "bash or zsh", {{"bash", true}, {"zsh", false}}, bash)->required();
  if (!set.parse(arguments)) return ExitCode::done;
  print_out(bash ? bash_text(commands) : zsh_text(commands));
  return ExitCode::done;
}

}  // namespace headwater::cli
