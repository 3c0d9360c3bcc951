#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "runtime/gguf/gguf.hpp"
#include "runtime/gguf/row_kernels.hpp"
#include "runtime/model/aligned_buffer.hpp"
#include "runtime/model/panel_product.hpp"

namespace headwater::runtime {

/// Rows [first, first + count) of a weight matrix.
struct RowRange {
  const Tensor* tensor = nullptr;
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// A part of a projection's result: values[r * stride + c] belongs to row `row + r`, column `column + c`.
struct Tile {
  std::int64_t row = 0;
  std::int64_t rows = 0;
  std::int64_t column = 0;
  std::int64_t columns = 0;
  const float* values = nullptr;
  std::int64_t stride = 0;
};

/// Takes the tiles of a result, from several threads at a time; each element comes once. A tile has at most
/// Projection::kPanelWidth columns.
class TileSink {
 public:
  TileSink() = default;
  TileSink(const TileSink&) = delete;
  TileSink& operator=(const TileSink&) = delete;
  virtual void take(const Tile& tile) const = 0;

 protected:
  ~TileSink() = default;
};

/// A block of rows that is multiplied at once: `height` is one of kBlockHeights and may reach past the `valid` rows.
struct RowBlock {
  std::int64_t first = 0;
  std::int64_t height = 0;
  std::int64_t valid = 0;
};

/// Cuts n rows into blocks that start anew at each multiple of `segment` (the chunk length): calls that cut a prompt
/// at chunk boundaries multiply the same blocks. Appends to `blocks`; the first row is row `first`.
void cut_into_blocks(std::int64_t n, std::int64_t segment, std::vector<RowBlock>& blocks,
                     std::int64_t first = 0);
/// Most blocks that cut_into_blocks(n', segment) makes for n' <= n.
[[nodiscard]] std::size_t most_blocks(std::int64_t n, std::int64_t segment);
/// Rows that a buffer needs after its n rows, because blocks reach past them.
inline constexpr std::int64_t kRowPadding = kBlockHeights.back() - 1;

/// The panel products of a model, each shape made once.
class PanelProducts {
 public:
  explicit PanelProducts(const TileKernels* tiles = native_tiles(), const RowKernels& rows = row_kernels())
      : tiles_(tiles), rows_(rows) {}
  [[nodiscard]] const PanelProduct& get(Precision precision, std::int64_t depth, std::int64_t width);
  /// What multiplies many rows in integers.
  [[nodiscard]] const RowKernels& rows() const { return rows_; }

 private:
  const TileKernels* tiles_;
  const RowKernels& rows_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::unique_ptr<PanelProduct>> products_[2];
};

/// Memory of one thread inside a projection.
struct ProjectionScratch {
  AlignedBuffer memory;
};

/// y = x W^T for the rows of one or several weight matrices, side by side. Weights of 16 or 32 bits are packed once,
/// into `precision`, and multiply_few() reads the file's own. Quantised ones stay quantised: packed once in groups of
/// rows (row_groups.hpp) where there are kernels for that and all matrices are quantised and begin at multiples of
/// sixteen columns, else as the file has them. A product over many rows widens them panel by panel into scratch; with
/// Precision::int8 it unpacks them to bytes instead, and rounds the rows to bytes.
class Projection {
 public:
  /// Columns of a panel: a block of 256 rows, its panel and the result then stay in a second-level cache.
  static constexpr std::int64_t kPanelWidth = 256;
  /// Granularity of multiply_few(): tiles of this many columns, aligned to it.
  static constexpr std::int64_t kSliceWidth = 64;
  /// Most rows of multiply_few().
  static constexpr std::int64_t kFewRows = 16;

  /// All rows have the same length. The tensors must outlive the projection. pack() must follow.
  Projection(PanelProducts& products, Precision precision, std::vector<RowRange> rows);

  /// Has pack() write to `memory`, packed_bytes() of it on a boundary of 64, instead of memory of its own: all matrices of
  /// a model in one piece lie on huge pages, which single ones do not fill.
  void place(std::byte* memory) { packed_ = memory; }
  /// Packs what is to be packed, and checks every weight. Error(invalid_argument) naming the tensor that holds NaN or
  /// infinity. After it the file's rows are not read again where reads_file() is false.
  void pack(int threads, std::span<ProjectionScratch> scratch);

  [[nodiscard]] std::int64_t depth() const { return depth_; }
  [[nodiscard]] std::int64_t width() const { return width_; }
  /// Of the rows that multiply() takes.
  [[nodiscard]] Precision precision() const { return precision_; }
  /// Whether multiply() is in integers, and by which kernels.
  [[nodiscard]] bool in_bytes() const { return bytes_ != nullptr; }
  [[nodiscard]] const ByteKernels* byte_kernels() const { return bytes_; }
  [[nodiscard]] std::size_t packed_bytes() const { return packed_bytes_; }
  [[nodiscard]] bool reads_file() const {
    return !grouped_ || (in_bytes() ? bytes_->unpacks_rows : !widens_groups_);
  }
  /// Calls action(tensor) for each matrix.
  template <typename Action>
  void for_tensors(const Action& action) const {
    for (const Piece& piece : pieces_) action(*piece.tensor);
  }
  [[nodiscard]] std::size_t scratch_bytes() const { return scratch_bytes_; }
  /// Bytes that multiply_few() reads.
  [[nodiscard]] std::int64_t stored_bytes() const;

  /// x: rows of depth() elements of the precision, kRowPadding of them readable after the last; they become rows in bytes
  /// or tiles where those are multiplied. Tiles have at most kPanelWidth columns and begin at multiples of kStripColumns.
  void multiply(void* x, std::span<const RowBlock> blocks, int threads, std::span<ProjectionScratch> scratch,
                const TileSink& sink) const;
  /// x: `rows` <= kFewRows rows of depth() floats, one after the other; allocates nothing. Every row has the bits that it
  /// has alone. Weights are read from memory once. Quantised ones are multiplied with x in fixed point of 16 bits
  /// (dot_rows_fixed), the others in F32.
  void multiply_few(const float* x, std::int64_t rows, int threads, std::span<ProjectionScratch> scratch,
                    const TileSink& sink) const;

 private:
  struct Panel {
    const PanelProduct* product = nullptr;
    std::int64_t first = 0;     // of the projection's columns
    std::size_t packed_at = 0;  // in packed_
  };
  struct Piece {
    const Tensor* tensor;
    std::int64_t tensor_row;
    std::int64_t column;  // where it begins in the projection
    std::int64_t count;
    std::size_t packed_at;  // its groups in packed_
  };
  [[nodiscard]] const Piece* piece_of(std::int64_t column) const;
  /// Calls action(tensor, its row, column of the projection, how many follow) for columns [first, last).
  template <typename Action>
  void for_rows(std::int64_t first, std::int64_t last, const Action& action) const;
  /// Calls action(tensor, its row, column of the projection, rows that are there, place in packed_) for the groups of
  /// columns [first, last).
  template <typename Action>
  void for_groups(std::int64_t first, std::int64_t last, const Action& action) const;
  /// Whether these kernels multiply all matrices, and faster than rows as they are: not beside BF16 where most weights are
  /// Q6_K, Q2_K or Q3_K, whose scales for every sixteen cost twice as much (Q6_K: .89 to .96 of BF16's rate, Zen 5).
  [[nodiscard]] bool bytes_pay(const ByteKernels& kernels) const;
  /// Places of the pieces' groups, or nothing where they stay as the file has them. Returns their bytes.
  std::size_t place_groups();
  /// Rows x as the kernels of each quantised type read them: beside stored rows, or beside groups of them.
  struct FewRows {
    const float* x;
    std::int64_t count;
    std::array<std::array<FixedRow, kFewRows>, kTensorTypes> fixed;
    std::array<std::array<const std::byte*, kFewRows>, kTensorTypes> grouped;
  };
  [[nodiscard]] std::size_t few_row_bytes() const;
  /// Row `row` of them, into memory.
  void arrange(FewRows& rows, std::int64_t row, const float* x, std::byte* memory) const;
  /// The columns [first, last) of a slice for these rows: result[row * kSliceWidth + column - first].
  void multiply_slice(std::int64_t first, std::int64_t last, const FewRows& rows, float* result) const;
  void multiply_groups(std::int64_t first, std::int64_t last, const FewRows& rows, float* result) const;
  void widen(const Tensor& tensor, std::int64_t first, std::int64_t count, std::byte* plain) const;
  /// Widens and packs a panel, with the places of a thread's scratch.
  void widen_panel(const Panel& panel, std::byte* packed, std::byte* memory) const;
  void widen_groups(const Panel& panel, std::byte* packed) const;
  /// Calls action(panel, some of the blocks, thread) so that every panel meets every block, from several threads.
  template <typename Action>
  void for_panels(std::span<const RowBlock> blocks, int threads, const Action& action) const;
  void multiply_in_bytes(void* x, std::span<const RowBlock> blocks, int threads,
                         std::span<ProjectionScratch> scratch, const TileSink& sink) const;
  void multiply_in_tiles(const TileKernels& tiles, void* x, std::span<const RowBlock> blocks, int threads,
                         std::span<ProjectionScratch> scratch, const TileSink& sink) const;
  /// The packed panel, widened into a thread's scratch where weights are quantised.
  [[nodiscard]] const std::byte* weights_of(const Panel& panel, std::byte* memory) const;
  /// Row of x, of the precision, to bytes at the same place.
  void round_row(std::byte* row) const;
  /// Unpacked groups of one type beside each other in a panel.
  struct Unpacked {
    TensorType type;
    std::int64_t column;  // of the panel
    std::int64_t groups;
    std::byte* at;
  };
  using UnpackedPanel = std::array<Unpacked, 16>;  // groups of a panel
  /// Unpacks a panel's groups; returns how many of `parts` they make.
  std::size_t unpack_groups(const Panel& panel, std::byte* memory, UnpackedPanel& parts) const;
  void pack_groups(const Panel& panel);
  void check_finite(const Panel& panel, float* wide) const;

  Precision precision_;
  std::int64_t depth_ = 0;
  std::int64_t width_ = 0;
  bool quantised_ = false;                   // of any piece: then nothing is packed into `precision_`
  bool grouped_ = false;                     // of all pieces, and in packed_
  bool widens_groups_ = false;               // straight into the product's layout
  const ByteKernels* bytes_ = nullptr;       // with which many rows are multiplied; null: in floats
  std::vector<TensorType> quantised_types_;  // each once
  std::vector<Piece> pieces_;
  std::vector<Panel> panels_;
  std::size_t packed_bytes_ = 0;
  std::byte* packed_ = nullptr;
  AlignedBuffer own_;  // packed_, where no other memory was given
  // Places in a thread's scratch: result tile, oneDNN's own, widened panel, packed panel, one row.
  std::size_t scratch_bytes_ = 0;
  std::size_t product_at_ = 0;
  std::size_t plain_at_ = 0;
  std::size_t panel_at_ = 0;
  std::size_t row_at_ = 0;
};

}  // namespace headwater::runtime
