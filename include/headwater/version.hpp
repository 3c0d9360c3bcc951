#pragma once

/// Version of the C++ API. The C ABI has a version of its own, HEADWATER_ABI_VERSION in headwater.h.
namespace headwater {
inline constexpr int kVersionMajor = 0;
inline constexpr int kVersionMinor = 1;
inline constexpr int kVersionPatch = 0;
inline constexpr const char* kVersion = "0.1.0";
}  // namespace headwater
