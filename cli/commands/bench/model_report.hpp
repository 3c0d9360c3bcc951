#pragma once

#include <string>

#include "cli/commands/bench/model_measurement.hpp"

namespace headwater::bench {

/// One JSON object and a line feed.
[[nodiscard]] std::string json_text(const ModelBenchFlags& flags, const ModelMeasurement& measurement);
/// A table for a reader.
[[nodiscard]] std::string summary_text(const ModelBenchFlags& flags, const ModelMeasurement& measurement);

}  // namespace headwater::bench
