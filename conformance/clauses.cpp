#include "conformance/clauses.hpp"

#include <algorithm>
#include <map>
#include <ostream>

#include <fmt/format.h>
#include <fmt/ostream.h>
#include <fmt/ranges.h>

#include "conformance/embedded.hpp"

namespace headwater::conformance {

bool write_clause_table(std::ostream& to, const std::vector<Case>& cases) {
  std::map<std::string, std::vector<std::string>> by_clause;
  bool whole = true;
  for (const Case& test : cases) {
    for (const std::string& clause : test.clauses) {
      by_clause[clause].push_back(test.name);
      if (std::find(spec_clauses().begin(), spec_clauses().end(), clause) == spec_clauses().end()) {
        fmt::print(to, "{} names {}, which the spec does not have\n", test.name, clause);
        whole = false;
      }
    }
  }
  for (const std::string& clause : spec_clauses()) {
    if (by_clause[clause].empty()) {
      fmt::print(to, "{:<8} NO CASE\n", clause);
      whole = false;
    } else {
      fmt::print(to, "{:<8} {}\n", clause, fmt::join(by_clause[clause], " "));
    }
  }
  return whole;
}

}  // namespace headwater::conformance
