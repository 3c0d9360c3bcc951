#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>

#include "cli/commands/commands.hpp"
#include "cli/support/flag_set.hpp"
#include "cli/support/output_file.hpp"
#include "cli/support/streams.hpp"
#include "cli/support/text.hpp"
#include "headwater/version.hpp"

namespace headwater::cli {
namespace {

constexpr std::string_view kExitStatus =
    "0 done, 1 a check failed, 2 bad usage or bad input, 3 engine not available, 141 nobody reads standard "
    "output.";

/// Text that roff prints as it is.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if ((c == '.' || c == '\'') && (result.empty() || result.back() == '\n')) result += "\\&";
    result += c == '\\' ? "\\e" : c == '-' ? "\\-" : std::string(1, c);
  }
  return result;
}

std::string page_name(const std::string& command) {
  return command.empty() ? "headwater" : fmt::format("headwater-{}", command);
}

std::string heading(const std::string& command, std::string_view about) {
  return fmt::format(".TH {} 1 \"\" \"headwater {}\" \"Headwater\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n",
                     escaped(page_name(command)), kVersion, escaped(page_name(command)), escaped(about));
}

std::string flags_text(const CommandForm& form) {
  std::string text;
  for (const Flag& flag : form.flags) {
    std::string names;
    for (const std::string& name : flag.names) {
      names +=
          fmt::format("{}\\f{}{}\\fR", names.empty() ? "" : ", ", flag.positional ? 'I' : 'B', escaped(name));
    }
    if (!flag.value.empty()) names += fmt::format(" \\fI{}\\fR", escaped(flag.value));
    text += fmt::format(".TP\n{}\n{}\n", names, escaped(flag.help));
  }
  return text;
}

std::string synopsis(const CommandForm& form) {
  std::string text = fmt::format(".B {}\n[\\fIFLAG\\fR...]", escaped(form.name));
  for (const Flag& flag : form.flags) {
    if (flag.positional) text += fmt::format(" \\fI{}\\fR", escaped(flag.names.front()));
  }
  return text + "\n.br\n";
}

std::string command_page(const CommandLine& command, const std::vector<CommandForm>& forms) {
  std::string text = heading(command.name, command.help);
  for (const CommandForm& form : forms) text += synopsis(form);
  text += ".SH DESCRIPTION\n";
  for (const CommandForm& form : forms) {
    text += fmt::format(".PP\n{}\n.PP\n.nf\n{}\n.fi\n", escaped(form.description), escaped(form.footer));
  }
  for (const CommandForm& form : forms) {
    text += forms.size() == 1 ? ".SH OPTIONS\n"
                              : fmt::format(".SH \"OPTIONS: {}\"\n",
                                            escaped(form.description.substr(0, form.description.find('\n'))));
    text += flags_text(form);
  }
  return text + ".SH \"SEE ALSO\"\n.BR headwater (1)\n";
}

std::string program_page(const std::vector<CommandLine>& commands) {
  std::string text = heading("", "chunked sparse prefill attention with heavy hitters");
  text += ".B headwater\n\\fICOMMAND\\fR [\\fIARGUMENT\\fR...]\n.SH COMMANDS\n";
  for (const CommandLine& command : commands) {
    text += fmt::format(".TP\n\\fB{}\\fR\n{}\n", escaped(command.name), escaped(command.help));
  }
  return text + fmt::format(".SH \"EXIT STATUS\"\n{}\n", kExitStatus);
}

/// Empty where the command's program is not installed.
std::string page(const CommandLine& command) {
  const auto forms = command_forms(command.name);
  return forms.empty() ? "" : command_page(command, forms);
}

void write_page(const std::string& folder, const std::string& command, const std::string& text) {
  if (text.empty()) return;
  OutputFile file(fmt::format("{}/{}.1", folder, page_name(command)), nullptr);
  file.write_at(0, std::as_bytes(std::span<const char>(text)));
  file.commit();
}

}  // namespace

ExitCode manual_command(const std::vector<std::string>& arguments, const std::vector<CommandLine>& commands) {
  std::string name;
  std::string folder;
  FlagSet set("The manual, for man to show.", "headwater man",
              "\nExample: the page of generate\n  headwater man generate | man -l -");
  set.text("COMMAND", "", "the command (the program itself)", name);
  const auto* write = set.text("--write", "DIR", "write all pages as files into this directory", folder);
  if (!set.parse(arguments)) return ExitCode::done;
  if (write->count() > 0) {
    write_page(folder, "", program_page(commands));
    for (const CommandLine& command : commands) write_page(folder, command.name, page(command));
    return ExitCode::done;
  }
  if (name.empty()) {
    print_out(program_page(commands));
    return ExitCode::done;
  }
  const auto found = std::find_if(commands.begin(), commands.end(),
                                  [&](const CommandLine& command) { return command.name == name; });
  const std::string text = found == commands.end() ? "" : page(*found);
  if (text.empty())
    throw Failure(fmt::format("COMMAND: there is no page for {}; see headwater --help", in_quotes(name)));
  print_out(text);
  return ExitCode::done;
}

}  // namespace headwater::cli
