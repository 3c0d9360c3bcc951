#pragma once

#include <cstddef>
#include <cstdint>

namespace headwater {

/// Element type of a tensor (NUM-1). F16 is IEEE binary16, BF16 the upper half of an IEEE binary32.
enum class DType : std::uint8_t { f32 = 0, f16 = 1, bf16 = 2 };

/// Bytes of one element.
constexpr std::size_t dtype_size(DType type) { return type == DType::f32 ? 4 : 2; }

/// "F32", "F16" or "BF16", as safetensors spells them.
constexpr const char* dtype_name(DType type) {
  return type == DType::f32 ? "F32" : type == DType::f16 ? "F16" : "BF16";
}

}  // namespace headwater
