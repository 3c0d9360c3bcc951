#pragma once

#include "headwater/engine.hpp"

namespace headwater {

/// The engine `reference`: the spec in plain scalar double arithmetic on the calling thread. It is what all
/// others are measured against, and slow.
[[nodiscard]] const Engine& reference_engine();

}  // namespace headwater
