#pragma once

#include "cuda/kernels/sm80/units.hpp"

/// Tiles of rows from global to shared memory, by all threads of a block.
namespace headwater::cuda {

/// Elements [column, column + kVectorBytes / sizeof(Element)) of a row, widened to the unit's type where it differs.
template <class Unit, class Context>
HEADWATER_CUDA_FUNCTION void load_vector(Context& ctx, Shared<typename Unit::Element> to,
                                         Global<const void> from, DType type, std::int64_t index,
                                         bool valid) {
  using Element = typename Unit::Element;
  if constexpr (Unit::kAsync) {
    ctx.copy_async16(to, elements_of<const Element>(from) + index, valid);
  } else {
    Words4 words{};
    if (valid) {
      if (type == DType::f32) {
        words = ctx.load16(elements_of<const float>(from) + index);
      } else {
        const Words2 pairs = ctx.load8(elements_of<const std::uint16_t>(from) + index);
        HEADWATER_CUDA_UNROLL
        for (int i = 0; i < 2; ++i) {
          const std::uint32_t pair = pairs.word[i];
          words.word[2 * i] = bits_of(type == DType::bf16 ? low_bf16(pair) : low_f16(pair));
          words.word[2 * i + 1] = bits_of(type == DType::bf16 ? high_bf16(pair) : high_f16(pair));
        }
      }
    }
    ctx.store16(to, words);
  }
}

/// kRows stored rows of `head`, elements [column, column + kColumns): tile row `row` is number row_of(row), or zeros where
/// that is negative. Columns from the stored width on become zero, too: what stands there never reaches a product (NUM-2).
template <class Unit, int kRows, int kColumns, class Context, class RowOf>
HEADWATER_CUDA_FUNCTION void load_rows(Context& ctx, Shared<typename Unit::Element> to,
                                       const StoredRows& rows, std::int64_t head, int column,
                                       const RowOf& row_of) {
  constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(typename Unit::Element));
  constexpr int kVectors = kColumns / kVector;
  static_assert(kColumns % kVector == 0);
  const std::int64_t head_begin = head * rows.head_stride;
  for (int i = ctx.thread(); i < kRows * kVectors; i += ctx.threads()) {
    const int row = i / kVectors;
    const int at = column + i % kVectors * kVector;
    const std::int64_t number = row_of(row);
    const bool valid = number >= 0 && at < rows.width;
    const std::int64_t index = valid ? head_begin + number * rows.width + at : 0;
    load_vector<Unit>(ctx, to + (row * (kColumns + Unit::kPad) + i % kVectors * kVector), rows.data,
                      rows.type, index, valid);
  }
}

/// Those from row `first` up to row `last`.
template <class Unit, int kRows, int kColumns, class Context>
HEADWATER_CUDA_FUNCTION void load_stored_rows(Context& ctx, Shared<typename Unit::Element> to,
                                              const StoredRows& rows, std::int64_t head, std::int64_t first,
                                              std::int64_t last, int column) {
  load_rows<Unit, kRows, kColumns>(ctx, to, rows, head, column, [&](int row) -> std::int64_t {
    return first + row < last ? first + row : -1;
  });
}

/// The same of rows as a caller laid them out, of whatever alignment. `place(row)` is the element where tile row `row`
/// begins, or -1 where there is none.
template <class Unit, int kRows, int kColumns, class Context, class Place>
HEADWATER_CUDA_FUNCTION void load_input_rows(Context& ctx, Shared<typename Unit::Element> to,
                                             const InputRows& rows, int width, int column,
                                             const Place& place) {
  using Element = typename Unit::Element;
  constexpr int kVector = kVectorBytes / static_cast<int>(sizeof(Element));
  constexpr int kVectors = kColumns / kVector;
  if (rows.vectors) {
    for (int i = ctx.thread(); i < kRows * kVectors; i += ctx.threads()) {
      const int row = i / kVectors;
      const int at = column + i % kVectors * kVector;
      const std::int64_t begin = place(row);
      const bool valid = begin >= 0 && at < width;
      load_vector<Unit>(ctx, to + (row * (kColumns + Unit::kPad) + i % kVectors * kVector), rows.data,
                        rows.type, valid ? begin + at : 0, valid);
    }
    return;
  }
  for (int i = ctx.thread(); i < kRows * kColumns; i += ctx.threads()) {
    const int row = i / kColumns;
    const int at = column + i % kColumns;
    const std::int64_t begin = place(row);
    const bool valid = begin >= 0 && at < width;
    Element element{};
    if constexpr (Unit::kAsync) {
      if (valid) element = elements_of<const Element>(rows.data)[begin + at];
    } else {
      if (valid) element = load_element(rows.data, rows.type, begin + at);
    }
    to[row * (kColumns + Unit::kPad) + i % kColumns] = element;
  }
}

/// What a tensor unit copied without waiting has arrived, and so has what other threads copied or wrote.
template <int kUnderWay, class Unit, class Context>
HEADWATER_CUDA_FUNCTION void arrive(Context& ctx) {
  if constexpr (Unit::kAsync) ctx.template copy_wait<kUnderWay>();
  ctx.barrier();
}

}  // namespace headwater::cuda
