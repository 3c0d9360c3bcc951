#include "cli/support/flag_set.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "cli/support/arguments.hpp"
#include "cli/support/failure.hpp"
#include "cli/support/text.hpp"

namespace headwater::cli {

FlagSet::FlagSet(const std::string& about, const std::string& command, const std::string& footer)
    : app_(about, command) {
  app_.footer(footer);
}

CLI::Option* FlagSet::value(const std::string& names, const char* type, const std::string& help,
                            Store store) {
  Entry& entry = entries_.emplace_back();
  entry.store = std::move(store);
  entry.option = app_.add_option(names, entry.text, help)->type_name(type);
  return entry.option;
}

CLI::Option* FlagSet::text(const std::string& names, const char* type, const std::string& help,
                           std::string& to) {
  return value(names, type, help, [&to](const std::string& text) { to = text; });
}

CLI::Option* FlagSet::flag(const std::string& names, bool& to, const std::string& help, bool given) {
  Entry& entry = entries_.emplace_back();
  entry.store = [&to, given](const std::string& /*text*/) { to = given; };
  entry.option = app_.add_flag(names, help);
  return entry.option;
}

void FlagSet::json(bool& to) { flag("--json", to, "one JSON object on standard output"); }

void FlagSet::quiet(bool& to) { flag("--quiet", to, "no progress and no summary; warnings and errors stay"); }

void FlagSet::check(std::function<void()> action) { checks_.push_back(std::move(action)); }

bool FlagSet::parse(const std::vector<std::string>& arguments) {
  if (!parse_arguments(app_, arguments)) return false;
  for (const Entry& entry : entries_) {
    if (entry.option->count() > 0) entry.store(entry.text);
  }
  for (const auto& check : checks_) check();
  return true;
}

std::string FlagSet::file_name(const char* spoken, const std::string& text) {
  if (text.empty()) throw Failure(fmt::format("{}: '' is no name of a file", spoken));
  return text;
}

double FlagSet::real_number(const char* name, const std::string& text, double low, double high) {
  const double number = parse_real(name, text, low);
  if (number <= high) return number;
  throw Failure(
      fmt::format("{}: {} is not allowed; use a number from {:g} to {:g}", name, in_quotes(text), low, high));
}

void FlagSet::refuse(const char* name, const std::string& text, const char* allowed) {
  throw Failure(fmt::format("{}: {} is not allowed; use {}", name, in_quotes(text), allowed));
}

}  // namespace headwater::cli
