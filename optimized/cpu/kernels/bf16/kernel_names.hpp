#pragma once

#include "cpu/kernels/bf16/table.hpp"

/// Declares the kernels of one BF16 unit in a namespace of its own, with the signatures of Bf16Table.
#define HEADWATER_DECLARE_BF16_KERNELS(unit)                                                              \
  namespace headwater::cpu::unit {                                                                        \
  void pack_queries(const void* rows, std::int64_t stride, std::int64_t n_rows, std::int64_t d,           \
                    std::int64_t d_padded, std::uint16_t* packed);                                        \
  void pack_values(const std::uint16_t* const* rows, std::int64_t n_keys, std::int64_t dv,                \
                   std::int64_t dv_padded, std::uint16_t* packed);                                        \
  void raise_to_highest(const Bf16Segment& segment, float* highest);                                      \
  void weigh(const Bf16Segment& segment, Bf16Softmax& softmax, std::uint16_t* weights);                   \
  void add_sink(float sink, Bf16Softmax& softmax);                                                        \
  void accumulate(const std::uint16_t* weights, std::int64_t tiles, const std::uint16_t* values,          \
                  std::int64_t dv_padded, bool fresh, float* out);                                        \
  void column_sums(const std::uint16_t* weights, std::int64_t n_keys, const float* factor, double* sums); \
  std::uint32_t unpack_rows(const float* transposed, std::int64_t n_rows, std::int64_t dv,                \
                            const float* factor, float* rows);                                            \
  }

/// Defines them by the templates of bf16/kernels.hpp and a Unit.
#define HEADWATER_DEFINE_BF16_KERNELS(unit, Unit)                                                          \
  namespace headwater::cpu::unit {                                                                         \
  void pack_queries(const void* rows, std::int64_t stride, std::int64_t n_rows, std::int64_t d,            \
                    std::int64_t d_padded, std::uint16_t* packed) {                                        \
    pack_bf16_queries(rows, stride, n_rows, d, d_padded, packed);                                          \
  }                                                                                                        \
  void pack_values(const std::uint16_t* const* rows, std::int64_t n_keys, std::int64_t dv,                 \
                   std::int64_t dv_padded, std::uint16_t* packed) {                                        \
    pack_bf16_values(rows, n_keys, dv, dv_padded, packed);                                                 \
  }                                                                                                        \
  void raise_to_highest(const Bf16Segment& segment, float* highest) {                                      \
    cpu::raise_to_highest<Unit>(segment, highest);                                                         \
  }                                                                                                        \
  void weigh(const Bf16Segment& segment, Bf16Softmax& softmax, std::uint16_t* weights) {                   \
    cpu::weigh<Unit>(segment, softmax, weights);                                                           \
  }                                                                                                        \
  void add_sink(float sink, Bf16Softmax& softmax) { cpu::add_sink(sink, softmax); }                        \
  void accumulate(const std::uint16_t* weights, std::int64_t tiles, const std::uint16_t* values,           \
                  std::int64_t dv_padded, bool fresh, float* out) {                                        \
    Unit::accumulate(weights, tiles, values, dv_padded, fresh, out);                                       \
  }                                                                                                        \
  void column_sums(const std::uint16_t* weights, std::int64_t n_keys, const float* factor, double* sums) { \
    column_sums_bf16(weights, n_keys, factor, sums);                                                       \
  }                                                                                                        \
  std::uint32_t unpack_rows(const float* transposed, std::int64_t n_rows, std::int64_t dv,                 \
                            const float* factor, float* rows) {                                            \
    return cpu::unpack_rows(transposed, n_rows, dv, factor, rows);                                         \
  }                                                                                                        \
  }

/// The table of a unit: HEADWATER_BF16_TABLE(unit, "isa", d_multiple, dv_multiple).
#define HEADWATER_BF16_TABLE(unit, name, keys, values)                                                  \
  {                                                                                                     \
    .isa = (name), .d_multiple = (keys), .dv_multiple = (values), .pack_queries = unit::pack_queries,   \
    .pack_values = unit::pack_values, .raise_to_highest = unit::raise_to_highest, .weigh = unit::weigh, \
    .add_sink = unit::add_sink, .accumulate = unit::accumulate, .column_sums = unit::column_sums,       \
    .unpack_rows = unit::unpack_rows,                                                                   \
  }
