#include "runtime/gguf/byte_product.hpp"

#include <cassert>

#include "headwater/testing/sabotage.hpp"
#include "runtime/gguf/row_kernels.hpp"

namespace headwater::runtime {
namespace {

const ByteKernels& byte_kernels() {
  assert(multiplies_bytes());
  return *row_kernels().bytes;
}

}  // namespace

bool multiplies_bytes() { return row_kernels().bytes != nullptr; }

std::size_t byte_row_bytes(std::int64_t n) { return static_cast<std::size_t>(n / kFixedRun * kByteRun); }

void to_byte_row(const float* x, std::int64_t n, std::byte* out) { byte_kernels().round(x, n, out); }

void to_byte_row(const std::uint16_t* x, std::int64_t n, std::byte* out) {
  byte_kernels().round_bf16(x, n, out);
}

std::size_t unpacked_group_bytes(TensorType type, std::int64_t n) {
  return static_cast<std::size_t>(byte_kernels().unpacked_bytes[static_cast<std::size_t>(type)](n));
}

void unpack_group(TensorType type, const std::byte* group, std::int64_t n, std::byte* out) {
  byte_kernels().unpack[static_cast<std::size_t>(type)](group, n, out);
}

void multiply_bytes(TensorType type, const std::byte* unpacked, std::int64_t groups, std::int64_t n,
                    const std::byte* x, std::int64_t x_stride, std::int64_t rows, float* out,
                    std::int64_t stride) {
  if (HEADWATER_SABOTAGE("runtime.bytes.last_row_of_a_tile_lost") && rows % 6 != 0) --rows;
  if (HEADWATER_SABOTAGE("runtime.bytes.odd_group_lost") && groups > 1) groups -= groups % 2;
  if (HEADWATER_SABOTAGE("runtime.bytes.depth_in_13_bits")) n = n > 8192 ? 8192 : n;
  byte_kernels().multiply[static_cast<std::size_t>(type)](unpacked, groups, n, x, x_stride, rows, out,
                                                          stride);
}

}  // namespace headwater::runtime
