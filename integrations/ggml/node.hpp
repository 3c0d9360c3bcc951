#pragma once

#include <cstdint>
#include <optional>

#include "headwater/headwater.hpp"
#include "integrations/ggml/host.hpp"

namespace headwater::ggml {

/// Why a node is left to ggml.
enum class Reason : std::uint8_t {
  none,
  few_rows,    ///< fewer than kLeastRows
  no_mask,     ///< no mask, or one that is no F16 matrix over these rows and keys
  streams,     ///< several streams: sequences that keep their rows apart
  alibi,       ///< max_bias
  type,        ///< of K and V, or of Q
  layout,      ///< strides that are no views of rows of whole elements
  size,        ///< head counts, widths or a context beyond what an engine takes
  numbers,     ///< a scale, cap or sink that is no allowed number
  not_causal,  ///< the mask is not that of one sequence: windows, gaps, several sequences, biases, NaN
  failed,      ///< the engine refused it or had no memory
};
inline constexpr int kReasons = 11;
const char* name_of(Reason reason);

/// Fewer rows gain nothing, and `-fa auto` asks with a single one whether flash attention stays on the CPU.
inline constexpr std::int64_t kLeastRows = 64;

/// A node of flash attention whose sizes, types and strides are checked. Data may not be there yet.
struct Node {
  const ggml_tensor* q = nullptr;  ///< F32 [d, rows, heads]
  const ggml_tensor* k = nullptr;  ///< [d, keys, heads_kv]
  const ggml_tensor* v = nullptr;  ///< [dv, keys, heads_kv]
  const ggml_tensor* mask = nullptr;
  const ggml_tensor* sinks = nullptr;  ///< F32 [heads], or null
  const ggml_tensor* out = nullptr;    ///< F32 [dv, heads, rows]
  Shape shape;                         ///< capacity: keys
  std::int64_t rows = 0;
  std::int64_t keys = 0;
  bool quantised = false;  ///< K and V; shape.kv_type is then that of their copy
  float scale = 0;
  float softcap = 0;
};

/// The node behind an operation, or why it is left to ggml. Reads no data.
std::optional<Node> read_node(const ggml_tensor* op, Reason& why);

/// Row i sees the keys first .. first + seen + i - 1 and no others.
struct Causal {
  std::int64_t first = 0;
  std::int64_t seen = 0;
};

/// Reads a mask of `rows` x `keys` F16 numbers, a row every `stride` of them. None where it is of any other form, and where a
/// visible key has another bias than 0.
std::optional<Causal> read_mask(const std::uint16_t* mask, std::int64_t stride, std::int64_t rows,
                                std::int64_t keys);

}  // namespace headwater::ggml
