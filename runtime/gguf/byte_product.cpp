#include "runtime/gguf/byte_product.hpp"

#include <cassert>

#include "headwater/testing/sabotage.hpp"
#include "runtime/gguf/kernels/table.hpp"
#include "runtime/gguf/row_groups.hpp"

namespace headwater::runtime {

bool multiplies_bytes(const ByteKernels& kernels, TensorType type, std::int64_t n) {
  const bool known = kernels.unpack[static_cast<std::size_t>(type)] != nullptr;
  return known && (kernels.unpacks_rows || packs_in_groups(type, n));
}

std::size_t byte_row_bytes(const ByteKernels& kernels, std::int64_t n) {
  return static_cast<std::size_t>(n / kFixedRun * kernels.run_bytes);
}

void to_byte_row(const ByteKernels& kernels, const float* x, std::int64_t n, std::byte* out) {
  kernels.round(x, n, out);
}

void to_byte_row(const ByteKernels& kernels, const std::uint16_t* x, std::int64_t n, std::byte* out) {
  kernels.round_bf16(x, n, out);
}

std::size_t unpacked_group_bytes(const ByteKernels& kernels, TensorType type, std::int64_t n) {
  return static_cast<std::size_t>(kernels.unpacked_bytes[static_cast<std::size_t>(type)](n));
}

void unpack_group(const ByteKernels& kernels, TensorType type, const std::byte* from, std::int64_t count,
                  std::int64_t n, std::byte* out) {
  kernels.unpack[static_cast<std::size_t>(type)](from, count, n, out);
}

void multiply_bytes(const ByteKernels& kernels, TensorType type, const std::byte* unpacked,
                    std::int64_t groups, std::int64_t n, const std::byte* x, std::int64_t x_stride,
                    std::int64_t rows, float* out, std::int64_t stride) {
  if (HEADWATER_SABOTAGE("runtime.bytes.last_row_of_a_tile_lost") && rows % 6 != 0) --rows;
  if (HEADWATER_SABOTAGE("runtime.bytes.odd_group_lost") && groups > 1) groups -= groups % 2;
  if (HEADWATER_SABOTAGE("runtime.bytes.depth_in_13_bits")) n = n > 8192 ? 8192 : n;
  kernels.multiply[static_cast<std::size_t>(type)](unpacked, groups, n, x, x_stride, rows, out, stride);
}

}  // namespace headwater::runtime
