#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "runtime/gguf/kernels/table.hpp"

namespace headwater::runtime::testing {

/// Element i of a row in bytes: code * scale, where the largest of a run has 128 times another byte in its code.
inline float byte_row_element(const std::byte* row, std::int64_t i) {
  constexpr int kOffset = 128;  // of unsigned codes
  constexpr int kLine = 64;     // bytes of four elements of sixteen stored rows
  struct {
    float scale;
    float sum;
    std::uint8_t high[4];
    std::int32_t line;
  } run;
  static_assert(sizeof run == kByteRun - kFixedRun);
  const std::byte* const codes = row + i / kFixedRun * kByteRun;
  std::memcpy(&run, codes + kFixedRun, sizeof run);
  int code = std::to_integer<int>(codes[i % kFixedRun]) - kOffset;
  if (run.line / kLine == i % kFixedRun / 4) code += 128 * run.high[i % 4];
  return run.scale * static_cast<float>(code);
}

}  // namespace headwater::runtime::testing
