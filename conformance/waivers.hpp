#pragma once

#include <string>
#include <vector>

#include "conformance/runner.hpp"

namespace headwater::conformance {

/// A known failure that is tolerated for a while: case, engine, reason and last day.
struct Waiver {
  std::string cases;    ///< shell pattern of case names
  std::string engine;   ///< shell pattern of engine names
  std::string reason;   ///< one line
  std::string expires;  ///< "2027-01-31", the last day on which it holds (UTC)
};

class Waivers {
 public:
  /// The list that was compiled in (conformance/waivers.json).
  static Waivers built_in();
  /// Errors: headwater::Error invalid_argument in one line that names the file, the entry and what is allowed:
  /// {"waivers": [{"case": ..., "engine": ..., "reason": ..., "expires": "YYYY-MM-DD"}, ...]}, all four, none else,
  /// at most 1 MiB.
  static Waivers load(const std::string& path);

  /// Turns every FAIL and MISTRUSTED that a waiver covers into WAIVED with its reason. Returns one line for each
  /// waiver that is not allowed to stand, which makes the run fail: expired before `today` ("YYYY-MM-DD"), of a case
  /// that the kit does not have, or unused, though a case and engine of its were run and none of them failed.
  [[nodiscard]] std::vector<std::string> apply(std::vector<Result>& results, const std::string& today) const;

  [[nodiscard]] const std::vector<Waiver>& list() const { return list_; }

 private:
  static Waivers parse(const std::string& text, const std::string& from);

  std::vector<Waiver> list_;
};

/// This day in UTC as "YYYY-MM-DD".
[[nodiscard]] std::string today();

}  // namespace headwater::conformance
