#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "conformance/random.hpp"
#include "headwater/options.hpp"
#include "headwater/session.hpp"

namespace headwater::conformance {

/// Values of a tensor [n, heads, width], token-major. Every value is representable in `type`; the runner lays
/// them out in memory as it likes.
struct Tensor {
  DType type = DType::f32;
  std::int64_t n = 0;
  std::int64_t heads = 0;
  std::int64_t width = 0;
  std::vector<float> values;

  Tensor() = default;
  Tensor(DType type, std::int64_t n, std::int64_t heads, std::int64_t width);

  [[nodiscard]] const float* row(std::int64_t t, std::int64_t h) const {
    return values.data() + (t * heads + h) * width;
  }
  [[nodiscard]] float* row(std::int64_t t, std::int64_t h) { return values.data() + (t * heads + h) * width; }
};

/// Q, K and V of one layer for all tokens of a problem.
struct LayerInput {
  Tensor q, k, v;
};

/// One whole run: what is opened, which steps are taken, and all rows.
struct Problem {
  Shape shape;
  Options options;
  std::vector<Step> steps;
  DType q_type = DType::f32;
  DType k_type = DType::f32;
  DType v_type = DType::f32;
  DType out_type = DType::f32;
  std::vector<LayerInput> layers;

  [[nodiscard]] std::int64_t tokens() const;
  /// Sizes of one layer, which may have widths of its own (LAYER-1).
  [[nodiscard]] Shape layer_shape(std::int64_t layer) const {
    return shape_of_layer(shape, options.layers, layer);
  }
  /// Elements that a token has in the outputs of a layer.
  [[nodiscard]] std::int64_t out_row(std::int64_t layer) const {
    return shape.n_head * layer_shape(layer).d_value;
  }
  /// "L1 Hq4/2 d8/8 S16 B32 L4 H4 ... p33 d1": enough to find the failing input again.
  [[nodiscard]] std::string describe() const;
  /// "F32" or "F32/BF16": type of Q and of the stored K and V; key of a baseline.
  [[nodiscard]] std::string dtype() const;

  /// Takes empty tensors of the right sizes for all layers.
  void make_tensors();
  /// About normal values, rounded to the types; logits (before cap and bias) get a deviation of `spread`.
  void fill_normal(Random& random, double spread = 2.0);
};

/// Ranges of random_problem.
struct Variety {
  std::int64_t max_chunk = 24;  ///< S in 1 .. max_chunk
  std::int64_t max_tokens = 120;
  std::int64_t max_layers = 1;
  bool dtypes = true;       ///< F16, BF16, mixed types; else all F32
  bool extras = true;       ///< soft cap, ALiBi, sinks, scale
  bool later_turns = true;  ///< decode steps, dense and sparse later turns; else one prefill turn
  bool wide = true;         ///< head sizes up to 128; else up to 9
};

/// A random problem: shape, options, steps and values, all from `random`.
[[nodiscard]] Problem random_problem(Random& random, const Variety& variety);

/// Rule `blocks` of random legal sizes for the options' chunk; `heavy` becomes a multiple of the key block.
void choose_blocks(Random& random, Options& options);
/// The same problem under rule `blocks`, of random sizes; `heavy` becomes a multiple of the key block.
[[nodiscard]] Problem with_blocks(Random& random, Problem problem);

/// Rule `sketches` of random legal sizes for the options' chunk.
void choose_sketches(Random& random, Options& options);
/// The same problem under this rule, of random sizes (h2o: as it is).
[[nodiscard]] Problem with_rule(Random& random, Problem problem, Select rule);

/// A of a legal size for the options: 0, the least, all of H, or anything between (CFG-5).
void choose_pinned(Random& random, Options& options);
/// D about the length of one of the problem's turns.
void choose_dense_below(Random& random, Problem& problem);
/// Widths of their own for some layers, of either kind; draws all rows anew.
void choose_widths(Random& random, Problem& problem);
/// Dense layers: the first, the last, all, every other one, or any.
void choose_dense_layers(Random& random, Problem& problem);

/// One key in `period` tokens, `first` of each, gets most of the weight, by such a logit: heavy hitters in every part of a
/// long prompt. Without them old tokens would have the highest scores, because more queries saw them.
void draw_to(Problem& problem, std::int64_t first, std::int64_t period, float logit = 6.0f);

/// The same problem with queries, keys, values and KV store of that type.
[[nodiscard]] Problem in_type(Problem problem, DType type);

}  // namespace headwater::conformance
