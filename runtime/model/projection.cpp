#include "runtime/model/projection.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>

#include "headwater/error.hpp"
#include "headwater/testing/sabotage.hpp"
#include "optimized/threads/team.hpp"
#include "runtime/gguf/byte_product.hpp"
#include "runtime/gguf/row_groups.hpp"
#include "runtime/gguf/row_kernels.hpp"
#include "runtime/model/kernels/kernels.hpp"
#include "runtime/model/kernels/tile_kernels.hpp"

namespace headwater::runtime {
namespace {

static_assert(Projection::kSliceWidth % kRowsOfGroup == 0 && Projection::kPanelWidth % kRowsOfGroup == 0);

/// Rows that are widened before they are packed: they stay in a second-level cache, and fill whole lines of a panel.
constexpr std::int64_t kWidenedRows = 16;

/// Bytes of stored rows that multiply_few() multiplies with one x after the other: half a first-level cache, in which they
/// stay.
constexpr std::int64_t kStripBytes = 16384;

/// A task of multiply_few() takes several slices where every thread still gets some tasks, which evens out threads that
/// are held up: what a group prefetches is then mostly what the same thread multiplies next.
constexpr std::int64_t kTasksOfThread = 4;
constexpr std::int64_t kSlicesOfTask = 8;

/// Rows of a product in bytes whose result is taken at once: it stays in a first-level cache. Whole tiles of six.
constexpr std::int64_t kStripOfBytes = 24;

/// Rows that a task rounds to bytes.
constexpr std::int64_t kRowsRoundedAtOnce = 16;

/// Elements of a panel's columns that tiles multiply with all rows of a block before the next: a quarter of a second-level cache.
constexpr std::int64_t kDepthOfTiles = 1024;

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

[[noreturn]] void refuse_row(const Tensor& tensor, std::int64_t row) {
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("tensor '{}': row {} holds NaN or infinity; allowed: finite weights", tensor.name, row));
}

}  // namespace

const PanelProduct& PanelProducts::get(Precision precision, std::int64_t depth, std::int64_t width) {
  auto& product = products_[precision == Precision::bf16 ? 1 : 0][{depth, width}];
  if (!product) product = std::make_unique<PanelProduct>(precision, depth, width, tiles_);
  return *product;
}

Projection::Projection(PanelProducts& products, Precision precision, std::vector<RowRange> rows)
    : precision_(row_precision(precision)), depth_(rows.front().tensor->dims[0]) {
  for (const RowRange& range : rows) {
    pieces_.push_back({range.tensor, range.first, width_, range.count, 0});
    width_ += range.count;
    const TensorType type = range.tensor->type;
    if (!is_quantised(type)) continue;
    quantised_ = true;
    if (std::find(quantised_types_.begin(), quantised_types_.end(), type) == quantised_types_.end()) {
      quantised_types_.push_back(type);
    }
  }
  std::size_t packed = place_groups();
  widens_groups_ = grouped_;
  for (const ByteKernels* const own : {products.rows().bytes, products.rows().words}) {
    if (bytes_ == nullptr && precision == Precision::int8 && own != nullptr && bytes_pay(*own)) bytes_ = own;
  }
  std::size_t product_scratch = 0;
  std::size_t panel_bytes = 0;
  for (std::int64_t first = 0; first < width_; first += kPanelWidth) {
    const PanelProduct& product = products.get(precision_, depth_, std::min(kPanelWidth, width_ - first));
    panels_.push_back({&product, first, packed});
    const std::size_t bytes = aligned_size(product.packed_bytes());
    if (!quantised_) packed += bytes;
    widens_groups_ = widens_groups_ && product.packs_rows() && product.columns_together() % kRowsOfGroup == 0;
    panel_bytes = std::max(panel_bytes, bytes);
    product_scratch = std::max(product_scratch, aligned_size(product.scratch_bytes()));
  }
  if (in_bytes()) {
    for (const TensorType type : quantised_types_) {
      panel_bytes =
          std::max(panel_bytes, kPanelWidth / kRowsOfGroup * unpacked_group_bytes(*bytes_, type, depth_));
    }
  }
  const auto depth = static_cast<std::size_t>(depth_);
  const auto element = static_cast<std::size_t>(precision_bytes(precision_));
  product_at_ = aligned_size(static_cast<std::size_t>(kBlockHeights.front() * kPanelWidth) * sizeof(float));
  plain_at_ = product_at_ + product_scratch;
  panel_at_ = plain_at_ + aligned_size(depth * static_cast<std::size_t>(kPanelWidth) * element);
  row_at_ = panel_at_ + panel_bytes;
  // multiply_few() needs none of these places, and has its rows in theirs.
  scratch_bytes_ = std::max(row_at_ + aligned_size(depth * sizeof(float)),
                            static_cast<std::size_t>(kFewRows) * few_row_bytes());
  packed_bytes_ = packed;
}

bool Projection::bytes_pay(const ByteKernels& kernels) const {
  const bool all = std::all_of(pieces_.begin(), pieces_.end(), [&](const Piece& piece) {
    return piece.column % kRowsOfGroup == 0 && multiplies_bytes(kernels, piece.tensor->type, depth_);
  });
  if (!all || (!grouped_ && !kernels.unpacks_rows)) return false;
  if (precision_ == Precision::f32) return true;
  if (kernels.round_bf16 == nullptr) return false;
  std::int64_t slow = 0;
  for (const Piece& piece : pieces_) {
    const TensorType type = piece.tensor->type;
    const bool sixteens = type == TensorType::q6_k || type == TensorType::q2_k || type == TensorType::q3_k;
    slow += sixteens ? piece.count : 0;
  }
  return 2 * slow <= width_;
}

std::size_t Projection::place_groups() {
  grouped_ = std::all_of(pieces_.begin(), pieces_.end(), [this](const Piece& piece) {
    return piece.column % kRowsOfGroup == 0 && packs_in_groups(piece.tensor->type, depth_);
  });
  std::size_t bytes = 0;
  for (Piece& piece : pieces_) {
    piece.packed_at = bytes;
    if (!grouped_) continue;
    const auto groups = static_cast<std::size_t>(divide_up(piece.count, kRowsOfGroup));
    bytes += groups * group_bytes(piece.tensor->type, depth_);
  }
  return bytes;
}

std::int64_t Projection::stored_bytes() const {
  std::int64_t bytes = 0;
  for (const Piece& piece : pieces_) bytes += piece.count * row_bytes(piece.tensor->type, depth_);
  return bytes;
}

const Projection::Piece* Projection::piece_of(std::int64_t column) const {
  return &*(std::upper_bound(pieces_.begin(), pieces_.end(), column,
                             [](std::int64_t wanted, const Piece& piece) { return wanted < piece.column; }) -
            1);
}

template <typename Action>
void Projection::for_rows(std::int64_t first, std::int64_t last, const Action& action) const {
  const Piece* piece = piece_of(first);
  for (std::int64_t column = first; column < last; ++piece) {
    const std::int64_t end = std::min(last, piece->column + piece->count);
    action(*piece->tensor, piece->tensor_row + (column - piece->column), column, end - column);
    column = end;
  }
}

template <typename Action>
void Projection::for_groups(std::int64_t first, std::int64_t last, const Action& action) const {
  const Piece* piece = piece_of(first);
  for (std::int64_t column = first; column < last; column += kRowsOfGroup) {
    if (column == piece->column + piece->count) ++piece;
    const std::int64_t row = column - piece->column;
    const auto at = static_cast<std::size_t>(row / kRowsOfGroup) * group_bytes(piece->tensor->type, depth_);
    action(*piece->tensor, piece->tensor_row + row, column, std::min(kRowsOfGroup, piece->count - row),
           piece->packed_at + at);
  }
}

void Projection::widen(const Tensor& tensor, std::int64_t first, std::int64_t count, std::byte* plain) const {
  const auto bytes = static_cast<std::size_t>(depth_ * precision_bytes(precision_));
  for (std::int64_t r = first; r < first + count; ++r, plain += bytes) {
    if (precision_ == Precision::bf16) {
      dequantize_row_bf16(tensor.type, tensor.row(r), depth_, reinterpret_cast<std::uint16_t*>(plain));
    } else {
      dequantize_row(tensor.type, tensor.row(r), depth_, reinterpret_cast<float*>(plain));
    }
  }
}

void Projection::widen_panel(const Panel& panel, std::byte* packed, std::byte* memory) const {
  const PanelProduct& product = *panel.product;
  const bool by_strips = product.packs_rows();
  const auto row_bytes = static_cast<std::size_t>(depth_ * precision_bytes(precision_));
  std::byte* plain = memory + plain_at_;
  for_rows(panel.first, panel.first + product.width(),
           [&](const Tensor& tensor, std::int64_t row, std::int64_t column, std::int64_t count) {
             if (row >= 4096 && HEADWATER_SABOTAGE("runtime.projection.strip_of_earlier_rows")) row -= 4096;
             for (std::int64_t done = 0; done < count; done += kWidenedRows) {
               const std::int64_t rows = std::min(kWidenedRows, count - done);
               widen(tensor, row + done, rows, plain);
               if (by_strips) {
                 product.pack_rows(plain, column + done - panel.first, rows, packed);
               } else {
                 plain += static_cast<std::size_t>(rows) * row_bytes;
               }
             }
           });
  if (!by_strips) product.pack(memory + plain_at_, packed, memory + product_at_);
}

void Projection::widen_groups(const Panel& panel, std::byte* packed) const {
  const PanelProduct& product = *panel.product;
  product.clear_padding(packed);
  for_groups(panel.first, panel.first + product.width(),
             [&](const Tensor& tensor, std::int64_t, std::int64_t column, std::int64_t, std::size_t at) {
               std::uint32_t* const to = product.columns_at(column - panel.first, packed);
               const auto widen = precision_ == Precision::bf16 ? widen_group_bf16 : widen_group;
               widen(tensor.type, packed_ + at, depth_, to, product.columns_together());
             });
}

void Projection::pack_groups(const Panel& panel) {
  for_groups(panel.first, panel.first + panel.product->width(),
             [&](const Tensor& tensor, std::int64_t row, std::int64_t, std::int64_t count, std::size_t at) {
               for (std::int64_t r = row; r < row + count; ++r) {
                 if (!quantised_row_is_finite(tensor.type, tensor.row(r), depth_)) refuse_row(tensor, r);
               }
               pack_group(tensor.type, tensor.row(row), count, depth_, packed_ + at);
             });
}

void Projection::check_finite(const Panel& panel, float* wide) const {
  for_rows(panel.first, panel.first + panel.product->width(),
           [&](const Tensor& tensor, std::int64_t first, std::int64_t, std::int64_t count) {
             for (std::int64_t r = first; r < first + count; ++r) {
               dequantize_row(tensor.type, tensor.row(r), depth_, wide);
               if (!kernels().all_finite(wide, depth_)) refuse_row(tensor, r);
             }
           });
}

void Projection::pack(int threads, std::span<ProjectionScratch> scratch) {
  if (packed_ == nullptr) {
    own_ = AlignedBuffer(packed_bytes_);
    packed_ = own_.data();
  }
  parallel_tasks(threads, static_cast<std::int64_t>(panels_.size()), [&](std::int64_t task, int thread) {
    const Panel& panel = panels_[static_cast<std::size_t>(task)];
    if (grouped_) return pack_groups(panel);
    std::byte* const memory = scratch[static_cast<std::size_t>(thread)].memory.data();
    check_finite(panel, reinterpret_cast<float*>(memory + row_at_));
    if (quantised_) return;
    widen_panel(panel, packed_ + panel.packed_at, memory);
  });
}

template <typename Action>
void Projection::for_panels(std::span<const RowBlock> blocks, int threads, const Action& action) const {
  const auto panels = static_cast<std::int64_t>(panels_.size());
  const auto all = static_cast<std::int64_t>(blocks.size());
  // A packed panel can be read again at no cost; a widened one is used for as many blocks as leave work for every thread.
  const std::int64_t groups =
      quantised_ ? std::min(all, std::max<std::int64_t>(1, divide_up(2 * threads, panels))) : all;
  parallel_tasks(threads, panels * groups, [&](std::int64_t task, int thread) {
    std::int64_t at = task / groups;
    if (HEADWATER_SABOTAGE("runtime.projection.panel_in_8_bits")) at &= 0xFF;
    const std::int64_t group = task % groups;
    const auto first = static_cast<std::size_t>(group * all / groups);
    const auto last = static_cast<std::size_t>((group + 1) * all / groups);
    action(panels_[static_cast<std::size_t>(at)], blocks.subspan(first, last - first), thread);
  });
}

void Projection::round_row(std::byte* row) const {
  if (precision_ == Precision::bf16) {
    to_byte_row(*bytes_, reinterpret_cast<const std::uint16_t*>(row), depth_, row);
  } else {
    to_byte_row(*bytes_, reinterpret_cast<const float*>(row), depth_, row);
  }
}

std::size_t Projection::unpack_groups(const Panel& panel, std::byte* memory, UnpackedPanel& parts) const {
  static_assert(std::tuple_size_v<UnpackedPanel> == kPanelWidth / kRowsOfGroup);
  std::size_t used = 0;
  for_groups(
      panel.first, panel.first + panel.product->width(),
      [&](const Tensor& tensor, std::int64_t row, std::int64_t column, std::int64_t count, std::size_t at) {
        if (used == 0 || parts[used - 1].type != tensor.type) {
          parts[used++] = {tensor.type, column - panel.first, 0, memory};
        }
        ++parts[used - 1].groups;
        const std::byte* const from = bytes_->unpacks_rows ? tensor.row(row) : packed_ + at;
        unpack_group(*bytes_, tensor.type, from, count, depth_, memory);
        memory += unpacked_group_bytes(*bytes_, tensor.type, depth_);
      });
  return used;
}

void Projection::multiply_in_bytes(void* x, std::span<const RowBlock> blocks, int threads,
                                   std::span<ProjectionScratch> scratch, const TileSink& sink) const {
  const std::int64_t rows = blocks.back().first + blocks.back().valid;
  const std::int64_t x_stride = depth_ * precision_bytes(precision_);
  auto* const byte_rows = static_cast<std::byte*>(x);
  parallel_tasks(threads, divide_up(rows, kRowsRoundedAtOnce), [&](std::int64_t task, int) {
    const std::int64_t last = std::min(rows, (task + 1) * kRowsRoundedAtOnce);
    for (std::int64_t row = task * kRowsRoundedAtOnce; row < last; ++row)
      round_row(byte_rows + row * x_stride);
  });
  for_panels(blocks, threads, [&](const Panel& panel, std::span<const RowBlock> some, int thread) {
    std::byte* const memory = scratch[static_cast<std::size_t>(thread)].memory.data();
    auto* const result = reinterpret_cast<float*>(memory);
    UnpackedPanel parts;
    const std::size_t used = unpack_groups(panel, memory + panel_at_, parts);
    for (const RowBlock& block : some) {
      for (std::int64_t done = 0; done < block.valid; done += kStripOfBytes) {
        const std::int64_t first = block.first + done;
        const std::int64_t count = std::min(kStripOfBytes, block.valid - done);
        const std::int64_t from =
            HEADWATER_SABOTAGE("runtime.bytes.rows_wrap_at_4096") ? first % 4096 : first;
        for (std::size_t i = 0; i < used; ++i) {
          const auto& [type, column, groups, at] = parts[i];
          multiply_bytes(*bytes_, type, at, groups, depth_, byte_rows + from * x_stride, x_stride, count,
                         result + column, kPanelWidth);
        }
        sink.take({first, count, panel.first, panel.product->width(), result, kPanelWidth});
      }
    }
  });
}

const std::byte* Projection::weights_of(const Panel& panel, std::byte* memory) const {
  if (!quantised_) return packed_ + panel.packed_at;
  if (widens_groups_) {
    widen_groups(panel, memory + panel_at_);
  } else {
    widen_panel(panel, memory + panel_at_, memory);
  }
  return memory + panel_at_;
}

void Projection::multiply_in_tiles(const TileKernels& tiles, void* x, std::span<const RowBlock> blocks,
                                   int threads, std::span<ProjectionScratch> scratch,
                                   const TileSink& sink) const {
  static_assert(kPanelWidth % kStripColumns == 0);
  auto* const rows = static_cast<std::uint16_t*>(x);
  // Sixteen rows that are all there become tiles; fewer stay as they are, since the rows after them are another block's.
  parallel_tasks(threads, static_cast<std::int64_t>(blocks.size()), [&](std::int64_t task, int thread) {
    const RowBlock& block = blocks[static_cast<std::size_t>(task)];
    auto* const free =
        reinterpret_cast<std::uint16_t*>(scratch[static_cast<std::size_t>(thread)].memory.data());
    const bool all = HEADWATER_SABOTAGE("runtime.tiles.rows_of_the_next_chunk");
    for (std::int64_t row = 0; row + (all ? 1 : kTileRows) <= block.valid; row += kTileRows) {
      tiles.arrange(rows + (block.first + row) * depth_, depth_, free + plain_at_ / sizeof(*free));
    }
  });
  const auto tiles_at = [&](const RowBlock& block, std::int64_t row) -> RowTiles {
    std::int64_t at = block.first + row;
    if (HEADWATER_SABOTAGE("runtime.tiles.rows_wrap_at_4096")) at %= 4096;
    const std::uint16_t* const first = rows + at * depth_;
    if (row + kTileRows <= block.valid) return {first, kTileDepth, kTileRows * kTileDepth};
    return {first, depth_, kTileDepth};
  };
  for_panels(blocks, threads, [&](const Panel& panel, std::span<const RowBlock> some, int thread) {
    std::byte* const memory = scratch[static_cast<std::size_t>(thread)].memory.data();
    const auto* const weights = reinterpret_cast<const std::uint16_t*>(weights_of(panel, memory));
    auto* const result = reinterpret_cast<float*>(memory);
    const std::int64_t width = panel.product->width();
    const auto multiply = [&](const RowBlock& block, std::int64_t row, std::int64_t begin, std::int64_t end) {
      const std::int64_t count = std::min(kStripRows, block.valid - row);
      const RowTiles of_rows[] = {tiles_at(block, row), tiles_at(block, row + kTileRows)};
      float* const sums = result + row * kPanelWidth;
      tiles.multiply(
          {of_rows, count > kTileRows ? 2 : 1, depth_, begin, end, weights,
           divide_up(width, 2 * kTileRows) * 2 * kTileRows, of_rows[0].first + kStripRows * depth_},
          sums);
      if (end < depth_) return;
      if (HEADWATER_SABOTAGE("runtime.tiles.first_strip_of_columns"))
        std::copy_n(sums, kStripRows * kStripColumns, sums + kStripRows * kStripColumns);
      for (std::int64_t column = 0; column < width; column += kStripColumns) {
        sink.take({block.first + row, count, panel.first + column, std::min(kStripColumns, width - column),
                   sums + column * kStripRows, kStripColumns});
      }
    };
    for (const RowBlock& block : some) {
      for (std::int64_t begin = 0; begin < depth_; begin += kDepthOfTiles) {
        std::int64_t end = std::min(begin + kDepthOfTiles, depth_);
        if (HEADWATER_SABOTAGE("runtime.tiles.first_part_of_the_depth") && begin > 0) begin = end = depth_;
        for (std::int64_t row = 0; row < block.valid; row += kStripRows) multiply(block, row, begin, end);
      }
    }
  });
}

void Projection::multiply(void* x, std::span<const RowBlock> blocks, int threads,
                          std::span<ProjectionScratch> scratch, const TileSink& sink) const {
  if (in_bytes()) return multiply_in_bytes(x, blocks, threads, scratch, sink);
  if (const TileKernels* const tiles = panels_.front().product->tiles(); tiles != nullptr)
    return multiply_in_tiles(*tiles, x, blocks, threads, scratch, sink);
  const std::int64_t row_bytes_x = depth_ * precision_bytes(precision_);
  for_panels(blocks, threads, [&](const Panel& panel, std::span<const RowBlock> some, int thread) {
    std::byte* const memory = scratch[static_cast<std::size_t>(thread)].memory.data();
    const std::byte* const weights = weights_of(panel, memory);
    auto* const result = reinterpret_cast<float*>(memory);
    const std::int64_t width = panel.product->width();
    for (const RowBlock& block : some) {
      std::int64_t first = block.first;
      if (HEADWATER_SABOTAGE("runtime.projection.rows_wrap_at_2048")) first %= 2048;
      const std::byte* const rows = static_cast<std::byte*>(x) + first * row_bytes_x;
      panel.product->multiply(block.height, rows, weights, result, memory + product_at_);
      sink.take({block.first, block.valid, panel.first, width, result, width});
    }
  });
}

std::size_t Projection::few_row_bytes() const {
  if (!quantised_) return 0;
  const std::size_t arranged = grouped_ ? arranged_for_groups_bytes(depth_) : arranged_row_bytes(depth_);
  return fixed_row_bytes(depth_) + quantised_types_.size() * arranged;
}

void Projection::arrange(FewRows& rows, std::int64_t row, const float* x, std::byte* memory) const {
  const FixedRow plain = fix_row(x, depth_, memory);
  memory += fixed_row_bytes(depth_);
  for (const TensorType type : quantised_types_) {
    const auto to = [&](auto& all) -> auto& {
      return all[static_cast<std::size_t>(type)][static_cast<std::size_t>(row)];
    };
    if (grouped_) {
      arrange_for_groups(type, plain, depth_, memory);
      to(rows.grouped) = memory;
      memory += arranged_for_groups_bytes(depth_);
    } else {
      to(rows.fixed) = arrange_row(type, plain, depth_, memory);
      memory += arranged_row_bytes(depth_);
    }
  }
}

void Projection::multiply_slice(std::int64_t first, std::int64_t last, const FewRows& rows,
                                float* result) const {
  const auto few = static_cast<std::size_t>(rows.count);
  for_rows(first, last, [&](const Tensor& tensor, std::int64_t row, std::int64_t column, std::int64_t count) {
    const std::int64_t strip =
        std::max<std::int64_t>(1, kStripBytes / headwater::runtime::row_bytes(tensor.type, depth_));
    for (std::int64_t done = 0; done < count; done += strip) {
      if (done > 0 && HEADWATER_SABOTAGE("runtime.projection.first_strip_alone")) break;
      const std::int64_t some = std::min(strip, count - done);
      const std::byte* const from = tensor.row(row + done);
      float* const out = result + (column - first) + done;
      if (is_quantised(tensor.type)) {
        const std::span x = std::span(rows.fixed[static_cast<std::size_t>(tensor.type)]).first(few);
        dot_rows_fixed(tensor.type, from, some, depth_, x, out, kSliceWidth);
        continue;
      }
      for (std::int64_t i = 0; i < rows.count; ++i) {
        dot_rows(tensor.type, from, some, depth_, rows.x + i * depth_, out + i * kSliceWidth);
      }
    }
  });
}

void Projection::multiply_groups(std::int64_t first, std::int64_t last, const FewRows& rows,
                                 float* result) const {
  const auto few = static_cast<std::size_t>(rows.count);
  for_groups(first, last,
             [&](const Tensor& tensor, std::int64_t, std::int64_t column, std::int64_t, std::size_t at) {
               const std::span x(rows.grouped[static_cast<std::size_t>(tensor.type)]);
               dot_group(tensor.type, packed_ + at, depth_, x.first(few), result + (column - first),
                         kSliceWidth);
             });
}

void Projection::multiply_few(const float* x, std::int64_t rows, int threads,
                              std::span<ProjectionScratch> scratch, const TileSink& sink) const {
  assert(rows >= 1 && rows <= kFewRows);
  FewRows few;
  few.x = x;
  few.count = rows;
  if (quantised_) {
    std::byte* const memory = scratch.front().memory.data();
    const std::size_t bytes = few_row_bytes();
    parallel_tasks(threads, rows, [&](std::int64_t row, int) {
      std::int64_t from = row;
      if (HEADWATER_SABOTAGE("runtime.projection.few_rows_wrap_at_8")) from %= 8;
      arrange(few, row, x + from * depth_, memory + static_cast<std::size_t>(row) * bytes);
    });
  }
  const std::int64_t slices = divide_up(width_, kSliceWidth);
  const std::int64_t run = std::clamp<std::int64_t>(slices / (kTasksOfThread * threads), 1, kSlicesOfTask);
  parallel_tasks(threads, divide_up(slices, run), [&](std::int64_t task, int) {
    float result[kFewRows * kSliceWidth];  // whole groups, too: the last one may reach past the width
    for (std::int64_t slice = task * run; slice < std::min(slices, (task + 1) * run); ++slice) {
      std::int64_t first = slice * kSliceWidth;
      if (HEADWATER_SABOTAGE("runtime.projection.slice_in_16_bits"))
        first = static_cast<std::uint16_t>(first);
      const std::int64_t last = std::min(width_, first + kSliceWidth);
      if (grouped_) {
        multiply_groups(first, last, few, result);
      } else {
        multiply_slice(first, last, few, result);
      }
      sink.take({0, rows, first, last - first, result, kSliceWidth});
      if (HEADWATER_SABOTAGE("runtime.projection.first_slice_of_task_alone")) break;
    }
  });
}

}  // namespace headwater::runtime
