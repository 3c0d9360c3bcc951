#include "cli/support/arguments.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cli/support/failure.hpp"
#include "cli/support/flag_table.hpp"
#include "cli/support/streams.hpp"
#include "cli/support/text.hpp"

namespace headwater::cli {
namespace {

/// One argument as CLI11 should see it.
void append_rewritten(std::vector<std::string>& result, const std::string& argument) {
  constexpr std::string_view kShort = "-ub";
  constexpr const char* kLong = "--ubatch-size";
  if (argument.starts_with(kShort)) {
    const std::string rest = argument.substr(kShort.size());
    const bool number = !rest.empty() && rest.front() >= '0' && rest.front() <= '9';
    if (rest.empty() || rest.front() == '=' || number) {
      result.emplace_back(kLong);
      if (!rest.empty()) result.push_back(number ? rest : rest.substr(1));
      return;
    }
  }
  // CLI11 takes the next argument for the value of `--name=`; an empty value is what was written.
  if (argument.starts_with("--") && argument.size() > 3 && argument.find('=') == argument.size() - 1) {
    result.push_back(argument.substr(0, argument.size() - 1));
    result.emplace_back();
    return;
  }
  result.push_back(argument);
}

std::vector<std::string> rewritten(const std::vector<std::string>& arguments) {
  std::vector<std::string> result;
  bool flags = true;
  for (const std::string& argument : arguments) {
    flags = flags && argument != "--";
    if (flags) {
      append_rewritten(result, argument);
    } else {
      result.push_back(argument);
    }
  }
  return result;
}

/// Flags that take several values: each time they stand there, as many follow, and none of them looks like a flag. CLI11 by
/// itself takes what there is, and counts the values of all times together.
void check_value_counts(const CLI::App& app, const std::vector<std::string>& arguments,
                        const std::string& see) {
  for (std::size_t i = 0; i < arguments.size() && arguments[i] != "--"; ++i) {
    if (!arguments[i].starts_with('-')) continue;
    const auto equals = arguments[i].find('=');
    const CLI::Option* const option = app.get_option_no_throw(arguments[i].substr(0, equals));
    if (option == nullptr) continue;
    const int wanted = option->get_items_expected_min();
    int given = equals == std::string::npos ? 0 : 1;
    for (; given < wanted && i + 1 < arguments.size(); ++given, ++i) {
      if (wanted > 1 && arguments[i + 1].starts_with('-') && arguments[i + 1] != "-") break;
    }
    if (wanted > 1 && given < wanted) {
      throw Failure(fmt::format("{} takes {} values, {}; given: {}{}", option->get_name(), wanted,
                                option->get_type_name(), given, see));
    }
  }
}

std::string unexpected_text(const CLI::App& app) {
  const auto arguments = app.remaining(true);
  std::string list;
  for (const std::string& argument : arguments) {
    list += fmt::format("{}{}", list.empty() ? "" : ", ", in_quotes(argument));
  }
  return fmt::format("unexpected {}: {}", arguments.size() == 1 ? "argument" : "arguments", list);
}

void set_rules(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    option->allow_extra_args(false);
    if (option->get_items_expected_max() == 0) option->disable_flag_override();
  }
  for (CLI::App* command : app.get_subcommands({})) set_rules(*command);
}

}  // namespace

void check_output_beside_json(const std::string& output, bool json) {
  if (json && output == kStandardOutput) {
    throw Failure("--json and an output of - both want standard output; name a file");
  }
}

bool parse_arguments(CLI::App& app, const std::vector<std::string>& arguments) {
  set_rules(app);
  if (!arguments.empty() && arguments.back() == kFlagTable) {
    print_out(flag_table(app).dump());
    return false;
  }
  const std::string see = fmt::format("; see {} --help", app.get_name());
  auto written = rewritten(arguments);
  check_value_counts(app, written, see);
  std::reverse(written.begin(), written.end());  // as CLI11 wants them
  try {
    app.parse(written);
  } catch (const CLI::CallForHelp&) {
    print_out(app.help());
    return false;
  } catch (const CLI::ExtrasError&) {
    throw Failure(unexpected_text(app) + see);
  } catch (const CLI::ParseError& error) {
    throw Failure(one_line(error.what()) + see);
  }
  return true;
}

}  // namespace headwater::cli
