#pragma once

#include <string>
#include <vector>

namespace headwater::conformance {

/// Every clause id of docs/spec.md, in its order, as it was when the kit was configured.
[[nodiscard]] const std::vector<std::string>& spec_clauses();

/// Files of this folder as they were when the kit was configured (conformance/CMakeLists.txt).
extern const char* const kRatchetJson;
extern const char* const kSaboteursJson;
extern const char* const kMustPass;
extern const char* const kWaiversJson;

}  // namespace headwater::conformance
