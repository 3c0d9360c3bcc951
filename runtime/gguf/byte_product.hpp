#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/gguf/tensor_type.hpp"

namespace headwater::runtime {

// Products of many rows with a quantised matrix in bytes: rows x in 8 bits with a scale for each run of 32 elements, stored
// rows in groups of sixteen (row_groups.hpp) with the codes that the file has.

/// Whether the processor has kernels for it. Precondition of what follows: it has, and packs_in_groups(type, n).
[[nodiscard]] bool multiplies_bytes();

/// Bytes of a row in bytes: for each run its codes, then its scale and what else belongs to it; fewer than n elements of BF16.
[[nodiscard]] std::size_t byte_row_bytes(std::int64_t n);
/// Rounds n floats, or bit patterns of BF16, to bytes: x[i] is about code * scale, to half a scale. The largest |x| of a run
/// has a code of 15 bits, the others of 7, so that a scale is 1/127 of the second largest, or, where that is more, 1/32639 of
/// the largest: activations have outliers, which would take the bits of all beside them. A run that holds NaN or infinity
/// gets a scale of NaN; one whose largest is at most 2^-100 is zero. `out` may be x itself.
void to_byte_row(const float* x, std::int64_t n, std::byte* out);
void to_byte_row(const std::uint16_t* x, std::int64_t n, std::byte* out);

/// Bytes of an unpacked group: n codes of sixteen rows in bytes, and what belongs to their runs; whole cache lines.
[[nodiscard]] std::size_t unpacked_group_bytes(TensorType type, std::int64_t n);
/// Unpacks a group, to memory aligned to 64.
void unpack_group(TensorType type, const std::byte* group, std::int64_t n, std::byte* out);

/// out[i * stride + r] is the product of row i, of `rows` at x, x_stride bytes from one to the next, and row r of `groups`
/// unpacked groups, of sixteen each, one after the other. Sums of a run are integers and exact; in the order of memory each
/// is scaled and added in F32: |error| <= (r + 4) * 2^-24 * sum_i (|scale code_i| + |minimum|) * |x_i|, or |x_i| rounded
/// up to the second largest of its run where that is more, r the number of runs of 16. Every row has the bits that it has alone.
void multiply_bytes(TensorType type, const std::byte* unpacked, std::int64_t groups, std::int64_t n,
                    const std::byte* x, std::int64_t x_stride, std::int64_t rows, float* out,
                    std::int64_t stride);

}  // namespace headwater::runtime
