#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/gguf/kernels/table.hpp"
#include "runtime/gguf/tensor_type.hpp"

namespace headwater::runtime {

/// Rows of a quantised matrix that lie side by side in memory (kernels/groups.hpp): as many bytes as in the file, and
/// read several times faster.
inline constexpr std::int64_t kRowsOfGroup = 16;

/// Whether rows of n elements are packed in groups: the type is quantised, the processor has kernels for it, and n is
/// a multiple of 64 (of 256 for the K types and IQ4_XS).
[[nodiscard]] bool packs_in_groups(TensorType type, std::int64_t n);
/// Bytes of a group, whole cache lines: those of sixteen stored rows (Q6_K and Q3_K: up to 32 more). Precondition of this and what
/// follows: packs_in_groups(type, n).
[[nodiscard]] std::size_t group_bytes(TensorType type, std::int64_t n);
/// Packs `count` <= 16 rows, stored one after the other, into `group`; rows after them become zero.
void pack_group(TensorType type, const std::byte* rows, std::int64_t count, std::int64_t n, std::byte* group);
/// Whether all elements of a stored quantised row are finite: its scales decide.
[[nodiscard]] bool quantised_row_is_finite(TensorType type, const std::byte* row, std::int64_t n);

/// Bytes of memory that arrange_for_groups() writes, whole cache lines.
[[nodiscard]] std::size_t arranged_for_groups_bytes(std::int64_t n);
/// x as dot_group() reads it for rows of a type.
void arrange_for_groups(TensorType type, const FixedRow& x, std::int64_t n, std::byte* memory);
/// The dot product of each of the sixteen rows with each row x, as arranged: out[i * stride + r] is that of x[i] and row r.
/// Each x has the bits that it has alone. Error bound and order: as dot_rows_fixed().
void dot_group(TensorType type, const std::byte* group, std::int64_t n, std::span<const std::byte* const> x,
               float* out, std::int64_t stride);

/// Elements as dequantize_row() and dequantize_row_bf16() give them, bit for bit (but for the sign of zeros of
/// missing rows): to[k * stride + r] is element k of row r, or elements 2 k and 2 k + 1, the first in the lower half.
/// `to` is aligned to 64 bytes, `stride` a multiple of 16 words.
void widen_group(TensorType type, const std::byte* group, std::int64_t n, std::uint32_t* to,
                 std::int64_t stride);
void widen_group_bf16(TensorType type, const std::byte* group, std::int64_t n, std::uint32_t* to,
                      std::int64_t stride);

}  // namespace headwater::runtime
