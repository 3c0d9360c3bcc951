#pragma once

#include <cstdint>
#include <string>

#include "cli/commands/atlas/input.hpp"

namespace headwater::cli {

/// Largest page that is written, in bytes: what a browser still opens at once.
inline constexpr std::uint64_t kMostPageBytes = std::uint64_t{64} << 20;

/// The page of a trace: HTML with style, program and data inside, no reference to anything else. `title` names the
/// file, or the model. Scores are exact; column sums of memory sets are kept as a share of one query, to 5 %. Failure where the page
/// would exceed kMostPageBytes.
[[nodiscard]] std::string atlas_page(const AtlasTrace& trace, const std::string& title);

}  // namespace headwater::cli
