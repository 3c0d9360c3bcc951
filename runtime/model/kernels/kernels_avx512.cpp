#include "runtime/model/kernels/kernels.hpp"

namespace headwater::runtime {
namespace {

#include "runtime/model/kernels/loops.inc"

}  // namespace

const Kernels kKernelsAvx512 = {
    .isa = "AVX-512",
    .rms_norm = rms_norm,
    .rms_norm_bf16 = rms_norm_bf16,
    .layer_norm = layer_norm,
    .layer_norm_bf16 = layer_norm_bf16,
    .add_rms_norm = add_rms_norm,
    .swiglu = swiglu,
    .swiglu_bf16 = swiglu_bf16,
    .geglu = geglu,
    .geglu_bf16 = geglu_bf16,
    .clamped_glu = clamped_glu,
    .clamped_glu_bf16 = clamped_glu_bf16,
    .sigmoid_gate = sigmoid_gate,
    .silu_gate = silu_gate,
    .convolve_silu = convolve_silu,
    .delta_step = delta_step,
    .add_scaled = add_scaled,
    .to_bf16 = to_bf16,
    .rotate_halves = rotate_halves,
    .rotate_adjacent = rotate_adjacent,
    .all_finite = all_finite,
};

}  // namespace headwater::runtime
