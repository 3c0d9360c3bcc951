#pragma once

#include <map>
#include <optional>
#include <string>

#include "conformance/case.hpp"

namespace headwater::conformance {

/// The worst err/B that every case has ever shown, per engine and ISA, stage and number format. A run whose ratio is
/// more than twice the recorded one has lost accuracy, however far below the bound it still is.
class Ratchet {
 public:
  /// The marks that were compiled in (conformance/ratchet.json).
  static Ratchet built_in();
  /// Errors: headwater::Error with the file's name when it cannot be read or is not a table of marks.
  static Ratchet load(const std::string& path);

  /// Whether anything was ever recorded for an engine, named as for judge().
  [[nodiscard]] bool knows(const std::string& engine) const { return marks_.count(engine) > 0; }
  /// What is wrong with these marks, or nothing. `engine` is Engine::name() + "/" + Engine::isa().
  [[nodiscard]] std::optional<std::string> judge(const std::string& engine, const std::string& name,
                                                 const std::vector<Mark>& marks) const;
  /// Replaces the marks of one engine and case.
  void record(const std::string& engine, const std::string& name, const std::vector<Mark>& marks);
  /// Writes a temporary file, then renames it.
  void save(const std::string& path) const;

 private:
  static Ratchet parse(const std::string& text, const std::string& from);

  // engine -> case -> "stage dtype" -> worst err/B
  std::map<std::string, std::map<std::string, std::map<std::string, double>>> marks_;
};

}  // namespace headwater::conformance
