#pragma once

#include "headwater/version.h"

/// Version of the C++ API. The C ABI has a version of its own, HEADWATER_ABI_VERSION in headwater.h.
namespace headwater {
inline constexpr int kVersionMajor = HEADWATER_VERSION_MAJOR;
inline constexpr int kVersionMinor = HEADWATER_VERSION_MINOR;
inline constexpr int kVersionPatch = HEADWATER_VERSION_PATCH;
inline constexpr const char* kVersion = HEADWATER_VERSION;
}  // namespace headwater
