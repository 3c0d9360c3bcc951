#include "arguments.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>

#include "failure.hpp"
#include "standard_output.hpp"
#include "text.hpp"

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

}  // namespace

bool parse_arguments(CLI::App& app, const std::vector<std::string>& arguments) {
  for (CLI::Option* option : app.get_options()) {
    // Taking the last is never seen: what was given twice is refused below, in words that name it.
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    if (option->get_items_expected_max() == 0) option->disable_flag_override();
  }
  auto reversed = rewritten(arguments);
  std::reverse(reversed.begin(), reversed.end());  // as CLI11 wants them
  const std::string see = fmt::format("; see {} --help", app.get_name());
  try {
    app.parse(reversed);
  } catch (const CLI::CallForHelp&) {
    print_out(app.help());
    return false;
  } catch (const CLI::ParseError& error) {
    throw Failure(one_line(error.what()) + see);
  }
  for (const CLI::Option* option : app.get_options()) {
    const auto values = static_cast<std::size_t>(std::max(1, option->get_items_expected_max()));
    if (option->count() > values) {
      throw Failure(fmt::format("{} is given {} times; allowed is once{}", option->get_name(),
                                option->count() / values, see));
    }
  }
  return true;
}

}  // namespace headwater::cli
