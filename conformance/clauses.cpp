#include "conformance/clauses.hpp"

#include <algorithm>
#include <map>
#include <ostream>

#include <fmt/format.h>
#include <fmt/ostream.h>
#include <fmt/ranges.h>

namespace headwater::conformance {

const std::vector<std::string>& spec_clauses() {
  static const std::vector<std::string> clauses{
      "CFG-1",   "CFG-2",   "CFG-3",   "CFG-4",   "PLAN-1",  "PLAN-2",  "STATE-1", "STATE-2",
      "STATE-3", "STATE-4", "STATE-5", "STATE-6", "ROPE-1",  "ROPE-2",  "ROPE-3",  "ROPE-4",
      "LOGIT-1", "LOGIT-2", "LOGIT-3", "LOGIT-4", "MASK-1",  "INTRA-1", "INTRA-2", "SCORE-1",
      "SCORE-2", "SCORE-3", "SCORE-4", "SCORE-5", "SCORE-6", "MEM-1",   "MEM-2",   "MEM-3",
      "MEM-4",   "MEM-5",   "MEM-6",   "INTER-1", "INTER-2", "INTER-3", "FUSE-1",  "FUSE-2",
      "SCHED-1", "SCHED-2", "SCHED-3", "DEC-1",   "NUM-1",   "NUM-2",   "NUM-3",   "NUM-4"};
  return clauses;
}

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
