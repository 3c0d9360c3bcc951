#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/gguf/tensor_type.hpp"

namespace headwater::runtime::testing {

/// Appends the blocks of `row` (whole blocks) as ggml lays them out: scales by the extremes of a block, rounding to the
/// nearest code; no search for better scales, as ggml does for the K types. BF16 is cut, not rounded.
void append_quantised(TensorType type, std::span<const float> row, std::vector<std::byte>& out);

}  // namespace headwater::runtime::testing
