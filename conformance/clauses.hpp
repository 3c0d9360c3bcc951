#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "conformance/case.hpp"

namespace headwater::conformance {

/// Writes the table clause -> cases. Returns false, after a line that names it, if a clause of the spec has no case or a
/// case names an unknown clause.
[[nodiscard]] bool write_clause_table(std::ostream& to, const std::vector<Case>& cases);

}  // namespace headwater::conformance
