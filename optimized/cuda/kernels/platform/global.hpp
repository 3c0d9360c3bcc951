#pragma once

/// Pointers into global memory as kernels and their parameters have them. Global<T> is T* on a GPU; on the host it is
/// as large, and every access through it is held to the buffer that it was given (emulation/global.hpp). What `+` makes
/// of it is a GlobalPlace<T>, which remembers that buffer. elements_of<T> casts a Global<void>.
#ifdef __CUDACC__

#include "cuda/kernels/platform/platform.hpp"

namespace headwater::cuda {

template <class T>
using Global = T*;
template <class T>
using GlobalPlace = T*;

template <class T>
HEADWATER_CUDA_FUNCTION T* elements_of(void* data) {
  return static_cast<T*>(data);
}
template <class T>
HEADWATER_CUDA_FUNCTION T* elements_of(const void* data) {
  return static_cast<T*>(data);
}

}  // namespace headwater::cuda

#else

#include <type_traits>

#include "cuda/emulation/global.hpp"

namespace headwater::cuda {

using emulation::Global;
using emulation::GlobalPlace;

template <class T, class U>
Global<T> elements_of(Global<U> data) {
  using Void = std::conditional_t<std::is_const_v<U>, const void, void>;
  return static_cast<T*>(static_cast<Void*>(data.raw()));
}

}  // namespace headwater::cuda

#endif
