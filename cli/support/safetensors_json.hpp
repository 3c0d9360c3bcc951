#pragma once

#include <string_view>

#include "cli/support/safetensors.hpp"

namespace headwater::cli {

/// The JSON of a safetensors header. Offsets are as written (relative to the data); sizes and offsets are whole
/// numbers of 64 bits, but not checked against each other. Everything that the format does not know (deeper nesting,
/// other keys, keys twice, other types of values) is refused where it begins. Failure otherwise.
[[nodiscard]] SafetensorsHeader parse_safetensors_json(std::string_view text);

}  // namespace headwater::cli
