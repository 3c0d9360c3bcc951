#pragma once

#include <cstdint>

namespace headwater::runtime {

/// Rows that gate and up take turns in, in LayerWeights::gate_up: a tile then holds both factors of a product.
inline constexpr std::int64_t kGateRows = 32;

/// Columns of a head's matrix that are worked on at once: of DeltaShape::d, which is a multiple of the first, the second where
/// that divides it.
inline constexpr std::int64_t kDeltaColumns = 16;
inline constexpr std::int64_t kWideDeltaColumns = 64;

/// A token of a head: DeltaShape.
struct DeltaRow {
  const float* key;    ///< [d]
  const float* query;  ///< [d]
  float* value;        ///< of the columns; becomes what is read of them
  float decay;
  float beta;
};

/// The loops of a forward pass besides projections and attention, one table per instruction set. Every sum is kept in
/// the same lanes and no multiply is contracted with an add, so all tables give the same bits.
struct Kernels {
  const char* isa;

  /// RMSNorm (Zhang and Sennrich, 2019): out[i] = weight[i] * x[i] / sqrt(mean(x^2) + epsilon). out may be x.
  void (*rms_norm)(const float* x, const float* weight, std::int64_t n, float epsilon, float* out);
  /// The same, rounded to BF16.
  void (*rms_norm_bf16)(const float* x, const float* weight, std::int64_t n, float epsilon,
                        std::uint16_t* out);
  /// LayerNorm (Ba et al., 2016) without a bias: RMSNorm of x - mean(x).
  void (*layer_norm)(const float* x, const float* weight, std::int64_t n, float epsilon, float* out);
  void (*layer_norm_bf16)(const float* x, const float* weight, std::int64_t n, float epsilon,
                          std::uint16_t* out);
  /// sum[i] += RMSNorm of x, as above.
  void (*add_rms_norm)(const float* x, const float* weight, std::int64_t n, float epsilon, float* sum);
  /// SwiGLU (Shazeer, 2020): out[i] = gate[i] / (1 + exp(-gate[i])) * up[i]; x has kGateRows gates, as many ups, and so on, n
  /// of each in all, so that the last ones may be fewer.
  void (*swiglu)(const float* x, std::int64_t n, float* out);
  /// The same, rounded to BF16.
  void (*swiglu_bf16)(const float* x, std::int64_t n, std::uint16_t* out);
  /// GeGLU (Shazeer, 2020) likewise: out[i] = gelu(gate[i]) * up[i], gelu(g) = g / 2 * (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))).
  void (*geglu)(const float* x, std::int64_t n, float* out);
  void (*geglu_bf16)(const float* x, std::int64_t n, std::uint16_t* out);
  /// Likewise out[i] = g / (1 + exp(-1.702 g)) * (u + 1), g = min(gate[i], 7), u = up[i] within -7 .. 7.
  void (*clamped_glu)(const float* x, std::int64_t n, float* out);
  void (*clamped_glu_bf16)(const float* x, std::int64_t n, std::uint16_t* out);
  /// x[i] *= 1 / (1 + exp(-gate[i])), and x[i] *= gate[i] / (1 + exp(-gate[i])).
  void (*sigmoid_gate)(const float* gate, std::int64_t n, float* x);
  void (*silu_gate)(const float* gate, std::int64_t n, float* x);
  /// out[i] = silu(sum over t of weights[t * n + i] * rows[t][i]).
  void (*convolve_silu)(const float* const* rows, const float* weights, std::int64_t taps, std::int64_t n,
                        float* out);
  /// The gated delta rule (DeltaShape) of `columns` columns, kDeltaColumns or kWideDeltaColumns; state: [d][columns].
  void (*delta_step)(float* state, std::int64_t d, std::int64_t columns, const DeltaRow& row);
  /// sum[i] += scale * (x[i] + bias[i]); `bias` may be null.
  void (*add_scaled)(const float* x, const float* bias, std::int64_t n, float scale, float* sum);
  /// Rounds to BF16, to nearest even; NaN stays NaN.
  void (*to_bf16)(const float* x, std::int64_t n, std::uint16_t* out);
  /// Turns the pairs (x[i], x[i + pairs]) by the angles whose cosine and sine are in the two arrays.
  void (*rotate_halves)(float* x, const float* cosine, const float* sine, std::int64_t pairs);
  /// The same for the pairs (x[2i], x[2i + 1]).
  void (*rotate_adjacent)(float* x, const float* cosine, const float* sine, std::int64_t pairs);
  /// sum |x| over n elements is finite: none of them is NaN or infinite.
  bool (*all_finite)(const float* x, std::int64_t n);
};

extern const Kernels kKernelsBaseline;  ///< x86-64-v2
extern const Kernels kKernelsAvx2;      ///< AVX2, FMA, F16C
extern const Kernels kKernelsAvx512;    ///< AVX-512 F, BW, DQ and VL on top

/// The best table that this processor runs.
[[nodiscard]] const Kernels& kernels();

}  // namespace headwater::runtime
