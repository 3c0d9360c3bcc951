#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace headwater::runtime {

/// The storage types of GGUF tensors that are read here. A quantised type stores blocks of consecutive elements of a
/// row; kernels/blocks.hpp describes a block.
enum class TensorType : std::uint8_t {
  f32,
  f16,
  bf16,
  q8_0,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q4_k,
  q5_k,
  q6_k,
  iq4_nl,
  mxfp4,
  q2_k,
  q3_k,
  iq4_xs
};

struct TensorTypeInfo {
  TensorType type;
  std::string_view name;        ///< as ggml spells it: "F32", "Q4_K"
  std::uint32_t ggml_id;        ///< the number in a file
  std::int64_t block_elements;  ///< elements of one block; a row is a whole number of blocks
  std::int64_t block_bytes;     ///< bytes of one block
};

/// All of them, in the order of the enumeration.
[[nodiscard]] std::span<const TensorTypeInfo> tensor_types();
[[nodiscard]] const TensorTypeInfo& tensor_type_info(TensorType type);
/// The type that a file means by `ggml_id`; none where it is not read here.
[[nodiscard]] std::optional<TensorType> tensor_type_of(std::uint32_t ggml_id);
/// ggml's name of any type number, read here or not; empty where ggml has none.
[[nodiscard]] std::string_view ggml_type_name(std::uint32_t ggml_id);
/// "F32, F16, BF16, ...", for error messages.
[[nodiscard]] std::string_view tensor_type_list();

/// Bytes of n consecutive elements. Precondition: n >= 0 is a multiple of the type's block_elements.
[[nodiscard]] std::int64_t row_bytes(TensorType type, std::int64_t n);

/// Widens n consecutive elements (whole blocks) to F32: out[i] = the value of element i, exactly for F32, F16 and
/// BF16; else scale * integer (+ minimum), in F32 and in ggml's order of operations, whatever the processor: ggml's bits.
/// `row` may stand at any address. Precondition: n is a multiple of block_elements; row has row_bytes(type, n) bytes.
void dequantize_row(TensorType type, const std::byte* row, std::int64_t n, float* out);

}  // namespace headwater::runtime
