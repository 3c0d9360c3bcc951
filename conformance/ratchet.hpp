#pragma once

#include <map>
#include <optional>
#include <string>

#include "conformance/case.hpp"

namespace headwater::conformance {

/// The baselines: the worst recorded err/B of every case, per engine and ISA, stage and number format. A run whose
/// ratio is more than twice the recorded one has lost accuracy, however far below the bound it still is.
class Ratchet {
 public:
  /// The baselines that were compiled in (conformance/ratchet.json).
  static Ratchet built_in();
  /// Errors: headwater::Error with the file's name when it cannot be read or is not a table of baselines.
  static Ratchet load(const std::string& path);

  /// Whether there are baselines of an engine, named as for judge().
  [[nodiscard]] bool has(const std::string& engine) const { return baselines_.count(engine) > 0; }
  /// What is wrong with these errors, or nothing. `engine` is Engine::name() + "/" + Engine::isa().
  [[nodiscard]] std::optional<std::string> judge(const std::string& engine, const std::string& name,
                                                 const std::vector<StageError>& errors) const;
  /// Replaces the baselines of one engine and case.
  void record(const std::string& engine, const std::string& name, const std::vector<StageError>& errors);
  /// Writes a temporary file, then renames it.
  void save(const std::string& path) const;

 private:
  static Ratchet parse(const std::string& text, const std::string& from);

  // engine -> case -> "stage dtype" -> worst err/B
  std::map<std::string, std::map<std::string, std::map<std::string, double>>> baselines_;
};

}  // namespace headwater::conformance
