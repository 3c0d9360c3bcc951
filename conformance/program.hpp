#pragma once

#ifdef HEADWATER_COMPILED_ONCE
#error "a file that asks which program it is belongs to own_sources in conformance/CMakeLists.txt"
#endif

namespace headwater::conformance {

/// Name of this binary: the shipped library, or the one with test hooks.
#ifdef HEADWATER_TESTING
inline constexpr const char* kProgram = "headwater-conformance-testing";
#else
inline constexpr const char* kProgram = "headwater-conformance";
#endif

/// Exit status; README.md has what each means.
inline constexpr int kDone = 0;
inline constexpr int kCheckFailed = 1;
inline constexpr int kBadUsage = 2;
inline constexpr int kNoEngine = 3;

}  // namespace headwater::conformance
