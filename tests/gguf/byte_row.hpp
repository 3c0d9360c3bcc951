#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "runtime/gguf/kernels/table.hpp"

namespace headwater::runtime::testing {

/// Element i of a row: code * scale, where the largest of a run in bytes has 128 times another byte in its code.
inline float byte_row_element(const ByteKernels& kernels, const std::byte* row, std::int64_t i) {
  constexpr int kLine = 64;  // bytes of four elements of sixteen stored rows
  struct {
    float scale;
    std::uint8_t high[4];
    std::int32_t line;
  } run;
  const std::byte* const codes = row + i / kFixedRun * kernels.run_bytes;
  std::memcpy(&run, codes + kFixedRun * kernels.code_bytes, sizeof run);
  if (kernels.code_bytes == 2) {
    std::int16_t word;
    std::memcpy(&word, codes + i % kFixedRun * 2, sizeof word);
    return run.scale * static_cast<float>(word);
  }
  const int byte = std::to_integer<int>(codes[i % kFixedRun]);
  int code = kernels.code_zero != 0 ? byte - kernels.code_zero : static_cast<std::int8_t>(byte);
  if (run.line / kLine == i % kFixedRun / 4) code += 128 * run.high[i % 4];
  return run.scale * static_cast<float>(code);
}

}  // namespace headwater::runtime::testing
