#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "headwater/options.hpp"

namespace headwater::cli {

/// The object on indented lines with a line feed after it; bytes that are not UTF-8 become U+FFFD.
[[nodiscard]] std::string json_line(const nlohmann::ordered_json& json);

/// "bf16" or "f32", as --score-type takes it.
[[nodiscard]] const char* score_type_name(ScoreType type);
/// "layer-major" or "chunk-major", as --schedule takes it.
[[nodiscard]] const char* schedule_name(Schedule schedule);

}  // namespace headwater::cli
