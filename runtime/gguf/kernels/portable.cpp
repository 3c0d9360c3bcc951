// Row kernels for every x86-64-v2 processor, with the compilers' vector type (docs/adr/0008).

#include "runtime/gguf/kernels/rows.hpp"

namespace headwater::runtime {
namespace {

struct Portable {
  using Reg = float __attribute__((vector_size(16)));
  static constexpr int kWidth = 4;

  static Reg load(const float* p) {
    Reg r;
    __builtin_memcpy(&r, p, sizeof r);
    return r;
  }
  static void store(float* p, Reg r) { __builtin_memcpy(p, &r, sizeof r); }
  static Reg set(float x) { return Reg{x, x, x, x}; }
  static Reg zero() { return Reg{}; }
  static Reg add(Reg a, Reg b) { return a + b; }
  static Reg sub(Reg a, Reg b) { return a - b; }
  static Reg mul(Reg a, Reg b) { return a * b; }
  static Reg fma(Reg a, Reg b, Reg c) { return a * b + c; }
  static float sum(Reg r) { return (r[0] + r[1]) + (r[2] + r[3]); }

  static Reg from_codes(const std::int8_t* codes) {
    using Bytes = std::int8_t __attribute__((vector_size(4)));
    Bytes bytes;
    __builtin_memcpy(&bytes, codes, sizeof bytes);
    return __builtin_convertvector(bytes, Reg);
  }
  static Reg from_f16(const std::byte* p) {
    return Reg{float_of_half(load_u16(p)), float_of_half(load_u16(p + 2)), float_of_half(load_u16(p + 4)),
               float_of_half(load_u16(p + 6))};
  }
  static Reg from_bf16(const std::byte* p) {
    return Reg{float_of_bf16(load_u16(p)), float_of_bf16(load_u16(p + 2)), float_of_bf16(load_u16(p + 4)),
               float_of_bf16(load_u16(p + 6))};
  }
};

}  // namespace

constinit const RowKernels portable_row_kernels = make_row_kernels<Portable>("x86-64-v2");

}  // namespace headwater::runtime
