#pragma once

/// Everything of the C++ API. The C ABI is headwater.h.
#include "headwater/dtype.hpp"
#include "headwater/engine.hpp"
#include "headwater/error.hpp"
#include "headwater/options.hpp"
#include "headwater/preset.hpp"
#include "headwater/rope.hpp"
#include "headwater/session.hpp"
#include "headwater/state.hpp"
#include "headwater/version.hpp"
