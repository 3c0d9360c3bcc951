#pragma once

#include "cpu/kernels/bf16/kernel_names.hpp"

HEADWATER_DECLARE_BF16_KERNELS(amx)
