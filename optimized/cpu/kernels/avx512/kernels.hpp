#pragma once

#include "cpu/kernels/kernel_names.hpp"

HEADWATER_DECLARE_KERNELS(avx512)
