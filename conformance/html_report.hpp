#pragma once

#include <string>

#include "conformance/report.hpp"

namespace headwater::conformance {

/// The whole run as one self-contained HTML page, without scripts: verdict, who was tested and what it claims, what
/// failed and how to repeat it, lanes, worst error over bound, determinism, what was skipped and why, every case.
[[nodiscard]] std::string results_html(const Run& run);

}  // namespace headwater::conformance
