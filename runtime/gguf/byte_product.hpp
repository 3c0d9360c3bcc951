#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/gguf/tensor_type.hpp"

namespace headwater::runtime {

// Products of many rows with a quantised matrix in integers: rows x in 8 bits (rows in bytes), or in 16, with a scale for each
// run of 32 elements, stored rows in groups of sixteen with the codes that the file has.

struct ByteKernels;  // runtime/gguf/kernels/table.hpp

/// Whether kernels multiply stored rows of this type and n elements: those of AVX-512 VNNI what packs_in_groups(), those of
/// AVX2 in bytes types of up to five bits, in 16 bits every quantised type. Precondition of what follows: they do.
[[nodiscard]] bool multiplies_bytes(const ByteKernels& kernels, TensorType type, std::int64_t n);

/// Bytes of a row: for each run its codes, then its scale and what else belongs to it. Less than n floats; kernels that round
/// BF16 have at most that.
[[nodiscard]] std::size_t byte_row_bytes(const ByteKernels& kernels, std::int64_t n);
/// Rounds n floats, or bit patterns of BF16, to bytes: x[i] is about code * scale, to half a scale. The largest |x| of a run
/// has a code of 15 bits, the others of 7, so that a scale is 1/127 of the second largest, or, where that is more, 1/32639 of
/// the largest: activations have outliers, which would take the bits of all beside them. A run that holds NaN or infinity
/// gets a scale of NaN; one whose largest is at most 2^-100 is zero. `out` may be x itself. Rows in 16 bits are those of
/// fix_row() (row_kernels.hpp).
void to_byte_row(const ByteKernels& kernels, const float* x, std::int64_t n, std::byte* out);
void to_byte_row(const ByteKernels& kernels, const std::uint16_t* x, std::int64_t n, std::byte* out);

/// Bytes of an unpacked group: n codes of sixteen rows in bytes, and what belongs to their runs; whole cache lines.
[[nodiscard]] std::size_t unpacked_group_bytes(const ByteKernels& kernels, TensorType type, std::int64_t n);
/// Unpacks a packed group (row_groups.hpp), or, for kernels that unpack rows, the group that `count` <= 16 stored rows, one
/// after the other, make; to memory aligned to 64. Products with rows after them may be anything.
void unpack_group(const ByteKernels& kernels, TensorType type, const std::byte* from, std::int64_t count,
                  std::int64_t n, std::byte* out);

/// out[i * stride + r] is the product of row i, of `rows` at x, x_stride bytes from one to the next, and row r of `groups`
/// unpacked groups, of sixteen each, one after the other. Sums of a run are integers and exact; in the order of memory each
/// is scaled and added in F32: |error| <= (r + 4) * 2^-24 * sum_i (|scale code_i| + |minimum|) * |x_i|, or |x_i| rounded
/// up to the second largest of its run where that is more, r the number of runs of 16. Every row has the bits that it has alone.
void multiply_bytes(const ByteKernels& kernels, TensorType type, const std::byte* unpacked,
                    std::int64_t groups, std::int64_t n, const std::byte* x, std::int64_t x_stride,
                    std::int64_t rows, float* out, std::int64_t stride);

}  // namespace headwater::runtime
