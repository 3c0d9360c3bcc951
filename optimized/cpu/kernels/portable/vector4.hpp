#pragma once

#include <cstring>

namespace headwater::cpu::portable {

/// Four floats in a register: the compilers' own vector type (g++ and clang, any target), element-wise + - * /.
/// Without it g++ 12 vectorises the tile loops of the kernels along the summation and spills every tile.
using Vector4 = float __attribute__((vector_size(16)));

inline Vector4 load(const float* from) {
  Vector4 vector;
  std::memcpy(&vector, from, sizeof(vector));  // any alignment; one instruction
  return vector;
}

inline void store(float* to, Vector4 vector) { std::memcpy(to, &vector, sizeof(vector)); }

inline Vector4 broadcast(float x) { return Vector4{x, x, x, x}; }

}  // namespace headwater::cpu::portable
