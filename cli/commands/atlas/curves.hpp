#pragma once

#include "cli/commands/atlas/canvas.hpp"
#include "cli/commands/atlas/input.hpp"

namespace headwater::cli {

/// Draws how long tokens survive in each head (Survival) into the canvas: curves on a logarithmic scale with their names
/// at their ends, the axes, and below them how many tokens were at risk. (x, y) is the left upper corner, labels included.
void draw_survival(Canvas& canvas, const GlyphSheet& glyphs, const AtlasTrace& trace, std::int64_t x,
                   std::int64_t y, std::int64_t width);

/// Pixels that draw_survival takes from y on.
inline constexpr std::int64_t kSurvivalHeight = 330;

}  // namespace headwater::cli
