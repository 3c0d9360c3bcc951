#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "conformance/case.hpp"

namespace headwater::conformance {

/// Every clause id of docs/spec.md, in its order. tools/lint_clauses.py holds what tests name against the document.
[[nodiscard]] const std::vector<std::string>& spec_clauses();

/// The table clause -> cases. Returns false, and says so, if a clause has no case or a case names an unknown clause.
[[nodiscard]] bool write_clause_table(std::ostream& to, const std::vector<Case>& cases);

}  // namespace headwater::conformance
