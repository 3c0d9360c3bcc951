#pragma once

#include <string>

#include "cli/commands/atlas/input.hpp"
#include "cli/commands/atlas/png_image.hpp"

namespace headwater::cli {

/// Most heads of the picture that get a panel of their own; the overview has all of them.
inline constexpr std::int64_t kMostPanels = 64;

/// The trace at one glance, 1800 pixels wide: the share of pairs computed, which tokens each head keeps, what each chunk
/// of each head read with the scores below it, and how long tokens survive. `title` names the file.
[[nodiscard]] PixelImage atlas_picture(const AtlasTrace& trace, const std::string& title);

}  // namespace headwater::cli
