#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace headwater::runtime {

struct TileKernels;  // runtime/model/kernels/tile_kernels.hpp

/// Type of both operands of a product over many rows; sums are F32 either way. int8: rows in 8 bits, or 16, beside the
/// codes of quantised weights (byte_product.hpp), and row_precision() beside others.
enum class Precision : std::uint8_t { f32, bf16, int8 };

/// "F32", "BF16" or "INT8".
[[nodiscard]] const char* precision_name(Precision precision);
/// BF16 where the processor multiplies it (AVX512_BF16 or AMX), else F32.
[[nodiscard]] Precision native_precision();
/// Of rows between the products: native_precision() for int8, which rounds them once more, else the precision itself.
[[nodiscard]] Precision row_precision(Precision precision);
/// Of an element of a row. Precondition: not int8.
[[nodiscard]] constexpr std::int64_t precision_bytes(Precision precision) {
  return precision == Precision::bf16 ? 2 : 4;
}
/// What products take where nobody chooses, the fastest: int8 where the processor has it and no AMX, else
/// native_precision().
[[nodiscard]] Precision automatic_precision();
/// Empty where the processor has products of this precision, else what they need: "AVX512_VNNI".
[[nodiscard]] std::string missing_for(Precision precision);
/// What oneDNN calls the instruction set that it uses: "AVX-512 BF16".
[[nodiscard]] const char* product_isa();
/// For reports: "BF16 by oneDNN (AVX-512 BF16)".
[[nodiscard]] std::string describe_products(Precision precision);

/// Row blocks that products are made in. A row's sums must not depend on how a prompt was cut into calls, so a block
/// has one of these heights, however many rows remain (rows after the last are multiplied too and not used).
inline constexpr std::array<std::int64_t, 3> kBlockHeights = {256, 64, 16};

/// Kernels of the processor's tiles; null where it has none, or oneDNN may not use them.
[[nodiscard]] const TileKernels* native_tiles();

/// Products of a block of rows with a panel of weights: out[r][c] = sum over k of x[r][k] * w[c][k]. By tile kernels
/// where the operands are BF16 and a row is a number of whole tiles, else by oneDNN.
/// Each call computes on the calling thread alone, so that results do not depend on the number of threads.
/// Immutable; may be shared by threads.
class PanelProduct {
 public:
  /// `depth`: elements of a row, `width`: rows of the panel (columns of the result).
  PanelProduct(Precision precision, std::int64_t depth, std::int64_t width,
               const TileKernels* tiles = native_tiles());
  ~PanelProduct();
  PanelProduct(const PanelProduct&) = delete;
  PanelProduct& operator=(const PanelProduct&) = delete;

  [[nodiscard]] Precision precision() const;
  [[nodiscard]] std::int64_t depth() const;
  [[nodiscard]] std::int64_t width() const;
  /// Bytes of a packed panel, and of what pack() and multiply() need beside it; both aligned to 64.
  [[nodiscard]] std::size_t packed_bytes() const;
  [[nodiscard]] std::size_t scratch_bytes() const;

  /// The tile kernels that multiply; null: oneDNN does.
  [[nodiscard]] const TileKernels* tiles() const;

  /// Brings `plain` [width][depth] (F32, or BF16 bit patterns) into the layout of the product.
  void pack(const void* plain, void* packed, void* scratch) const;
  /// Whether that layout is one that pack_rows() writes: it then saves a pass over the panel.
  [[nodiscard]] bool packs_rows() const;
  /// pack() for rows [first, first + count) of the panel alone, `plain` [count][depth]; a whole panel's rows make it whole.
  void pack_rows(const void* plain, std::int64_t first, std::int64_t count, void* packed) const;
  /// Columns of the panel that lie beside each other in its layout, as pack_rows() knows it: word k of them (one F32,
  /// two BF16) comes as many words after word k - 1. 0: the layout is another.
  [[nodiscard]] std::int64_t columns_together() const;
  /// The first word of `column` in a packed panel; those of the next columns_together() - column % columns_together()
  /// follow. Precondition: packs_rows().
  [[nodiscard]] std::uint32_t* columns_at(std::int64_t column, void* packed) const;
  /// Makes zeros of the columns after the last, which are multiplied, too. Precondition: packs_rows().
  void clear_padding(void* packed) const;
  /// By oneDNN. x: [height][depth] contiguous, of the precision; out: [height][width] F32. `height` is one of kBlockHeights.
  void multiply(std::int64_t height, const void* x, const void* packed, float* out, void* scratch) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace headwater::runtime
