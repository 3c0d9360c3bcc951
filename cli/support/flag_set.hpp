#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "cli/support/numbers.hpp"

namespace headwater::cli {

/// The flags of a command: each is declared once, with its names as CLI11 takes them, its help, what its value may be and
/// where the value goes. Where a flag is not given, its target keeps what it had. CLI11 hands the values over as text, so
/// that every refusal is a Failure in our own words, which name the flag as `spoken`.
class FlagSet {
 public:
  using Store = std::function<void(const std::string&)>;

  FlagSet(const std::string& about, const std::string& command, const std::string& footer);

  CLI::Option* value(const std::string& names, const char* type, const std::string& help, Store store);
  CLI::Option* text(const std::string& names, const char* type, const std::string& help, std::string& to);
  /// A text that is not empty.
  template <typename Text>
  CLI::Option* file(const std::string& names, const char* spoken, const char* type, const std::string& help,
                    Text& to) {
    return value(names, type, help, [=, &to](const std::string& text) { to = file_name(spoken, text); });
  }
  template <typename Integer>
  CLI::Option* integer(const std::string& names, const char* spoken, std::int64_t low, std::int64_t high,
                       const std::string& help, Integer& to) {
    return value(names, "N", help, [=, &to](const std::string& text) {
      const std::int64_t number = parse_integer(spoken, text, low, high);
      if constexpr (std::is_integral_v<Integer>) {
        to = static_cast<Integer>(number);
      } else {
        to = number;
      }
    });
  }
  /// A finite number from `low` to `high`.
  template <typename Real>
  CLI::Option* real(const char* name, double low, double high, const std::string& help, Real& to) {
    return value(name, "X", help,
                 [=, &to](const std::string& text) { to = real_number(name, text, low, high); });
  }
  /// One of a few words; `allowed` lists them in messages.
  template <typename Value>
  CLI::Option* choice(const char* name, const char* type, const std::string& help, const char* allowed,
                      std::vector<std::pair<std::string_view, Value>> values, Value& to) {
    return value(name, type, help, [=, &to](const std::string& text) {
      for (const auto& [word, meaning] : values) {
        if (word == text) {
          to = meaning;
          return;
        }
      }
      refuse(name, text, allowed);
    });
  }
  /// Sets `to` to `given`.
  CLI::Option* flag(const std::string& names, bool& to, const std::string& help, bool given = true);
  void json(bool& to);   ///< --json: one object on standard output
  void quiet(bool& to);  ///< --quiet: no progress, and no summary of a result that is written elsewhere
  /// What parse() does after every value has its place: what several flags must be together, and defaults that depend.
  void check(std::function<void()> action);

  /// Reads the arguments after the command's name. False if help was asked for; it then stands on standard output.
  [[nodiscard]] bool parse(const std::vector<std::string>& arguments);
  [[nodiscard]] CLI::App& app() { return app_; }

 private:
  struct Entry {
    std::string text;
    CLI::Option* option = nullptr;
    Store store;
  };
  static std::string file_name(const char* spoken, const std::string& text);
  static double real_number(const char* name, const std::string& text, double low, double high);
  [[noreturn]] static void refuse(const char* name, const std::string& text, const char* allowed);

  CLI::App app_;
  std::deque<Entry> entries_;  // CLI11 keeps the addresses of the texts
  std::vector<std::function<void()>> checks_;
};

}  // namespace headwater::cli
