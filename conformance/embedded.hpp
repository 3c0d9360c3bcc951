#pragma once

namespace headwater::conformance {

/// Files of this folder as they were when the kit was configured (conformance/CMakeLists.txt).
extern const char* const kRatchetJson;
extern const char* const kSaboteursJson;
extern const char* const kMustPass;
extern const char* const kWaiversJson;

}  // namespace headwater::conformance
