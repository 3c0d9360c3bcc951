#pragma once

#include <string>
#include <vector>

#include "conformance/runner.hpp"

namespace headwater::conformance {

/// Compares results with conformance/mustpass.txt and returns one line for each thing that is missing. Only lines of
/// which a case was chosen count, so that a run of some lanes needs those alone; where `asked` names engines, only
/// lines about them count. An engine that this processor cannot run is not missing; one that the library lacks is.
[[nodiscard]] std::vector<std::string> missing_passes(const std::vector<Result>& results,
                                                      const std::vector<const Case*>& chosen,
                                                      const std::vector<std::string>& asked = {});

}  // namespace headwater::conformance
