#include "cli/support/flag_table.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "cli/support/descriptor.hpp"
#include "cli/support/failure.hpp"

namespace headwater::cli {
namespace {

using nlohmann::ordered_json;

constexpr const char* kSelf = "/proc/self/exe";

ordered_json flag_json(const CLI::Option& option) {
  ordered_json names = ordered_json::array();
  if (option.get_positional()) names.push_back(option.get_single_name());
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  const bool value = option.get_items_expected_max() > 0 && !option.get_positional();
  return {{"names", names},
          {"value", value ? option.get_type_name() : ""},
          {"help", option.get_description()},
          {"positional", option.get_positional()}};
}

/// Standard output of this program, called with these arguments; empty where it fails.
std::string output_of_self(std::vector<std::string> arguments) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw Failure("no pipe to this program's own commands");
  const Descriptor reader(ends[0]);
  Descriptor writer(ends[1]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, writer.number(), STDOUT_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  arguments.insert(arguments.begin(), kSelf);
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t child = 0;
  const int error = ::posix_spawn(&child, kSelf, &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw Failure("this program cannot run its own commands");
  (void)writer.close();
  std::string text;
  std::array<char, 4096> part{};
  for (;;) {
    const ssize_t got = ::read(reader.number(), part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    text.append(part.data(), static_cast<std::size_t>(got));
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? text : "";
}

void read_form(const ordered_json& table, const std::string& prefix, std::vector<CommandForm>& forms) {
  CommandForm form{
      prefix + table.at("name").get<std::string>(), table.at("description"), table.at("footer"), {}};
  for (const ordered_json& flag : table.at("flags")) {
    form.flags.push_back({flag.at("names"), flag.at("value"), flag.at("help"), flag.at("positional")});
  }
  forms.push_back(form);
  for (const ordered_json& below : table.at("commands")) read_form(below, form.name + " ", forms);
}

}  // namespace

ordered_json flag_table(const CLI::App& app) {
  ordered_json table = {{"name", app.get_name()},
                        {"description", app.get_description()},
                        {"footer", app.get_footer()},
                        {"flags", ordered_json::array()},
                        {"commands", ordered_json::array()}};
  for (const CLI::Option* option : app.get_options()) table["flags"].push_back(flag_json(*option));
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    table["commands"].push_back(flag_table(*command));
  }
  return table;
}

std::vector<CommandForm> command_forms(const std::string& command) {
  std::vector<CommandForm> forms;
  std::string first;
  for (const bool model : {false, true}) {
    std::vector<std::string> arguments{command};
    if (model) arguments.emplace_back("-m");
    arguments.emplace_back(kFlagTable);
    const std::string text = output_of_self(arguments);
    const ordered_json table = ordered_json::parse(text, nullptr, false);
    if (text == first || table.is_discarded()) continue;
    first = text;
    read_form(table, "", forms);
  }
  return forms;
}

}  // namespace headwater::cli
