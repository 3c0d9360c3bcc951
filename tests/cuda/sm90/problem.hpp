#pragma once

#include <cstdint>
#include <vector>

#include "cuda/kernels/sm90/raw_params.hpp"
#include "cuda/kernels/sm90/roles.hpp"
#include "cuda/kernels/sm90/schedule.hpp"
#include "cuda/kernels/sm90/tensor_map.hpp"

namespace headwater::cuda::sm90 {

/// The map as the emulation encodes it.
[[nodiscard]] TensorMap encoded(const TileMap& map);

/// Random rows of an intra pass, and what the spec says about them, in double precision from its definitions.
class IntraProblem {
 public:
  struct Options {
    IntraShape shape;
    bool bf16 = true;
    bool sinks = false;
    float spread = 1.0f;  ///< of the rows' elements
    std::uint32_t seed = 1;
    int d = 128;
    int dv = 128;
    float cap = 0.0f;    ///< LOGIT-2, natural units; 0: none
    float slope = 0.0f;  ///< LOGIT-3, of head 0; head h has slope / (h + 1)
    float scale = 0.0f;  ///< 0: 1 / sqrt(d)
  };
  explicit IntraProblem(const Options& options);

  [[nodiscard]] TileMap q_map(int rows) const;
  [[nodiscard]] TileMap k_map(int rows = kTile) const { return kv_map(k_, options_.d, rows); }
  [[nodiscard]] TileMap v_map(int rows = kTile) const { return kv_map(v_, options_.dv, rows); }
  /// In units of ln 2, as a session makes it.
  [[nodiscard]] LogitRule rule() const;
  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] int tokens() const { return options_.shape.chunks * options_.shape.tokens; }

  /// Makes row `token` of keys and values NaN in every head.
  void poison(int token);

  struct Row {
    std::vector<double> out;
    std::vector<double> magnitude;  ///< sum of weight times |value|, per column
    double lse;
  };
  /// INTRA-1 of query `token` of `head`.
  [[nodiscard]] Row row(int head, int token) const;
  /// INTRA-2 of chunk `chunk`: one sum a key.
  [[nodiscard]] std::vector<double> column_sums(int head, int chunk) const;

 private:
  [[nodiscard]] TileMap kv_map(const std::vector<std::uint16_t>& rows, int width, int box) const;
  [[nodiscard]] double logit(int head, int query, int key) const;
  [[nodiscard]] double value(std::uint16_t bits) const;
  [[nodiscard]] double scale() const;
  [[nodiscard]] double sink_weight(int head) const;

  /// Rows after the last token hold NaN: nothing may read them.
  static constexpr int kRowsBehind = 150;

  Options options_;
  int capacity_;
  std::vector<std::uint16_t> q_;  ///< [token][head][d]
  std::vector<std::uint16_t> k_;  ///< [kv head][capacity][d]
  std::vector<std::uint16_t> v_;
  std::vector<float> sinks_;  ///< units of ln 2, as the slopes
  std::vector<float> slopes_;
};

}  // namespace headwater::cuda::sm90
