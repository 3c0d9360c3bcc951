#pragma once

#include <cstdint>
#include <string>

#include "cli/commands/atlas/canvas.hpp"

namespace headwater::cli {

// Local and heavy: Okabe and Ito, "Color Universal Design", 2008. They also differ in lightness.
inline constexpr Colour kPaper{255, 255, 255}, kInk{32, 33, 36}, kFaint{110, 114, 120}, kPanel{243, 244, 246};
inline constexpr Colour kOwn{176, 180, 186}, kLocal{86, 180, 233}, kHeavy{213, 94, 0}, kDense{214, 217, 222};

inline constexpr std::int64_t kLabels = 62;  ///< pixels to the left of what is as wide as the picture
inline constexpr std::int64_t kTick = 4;     ///< pixels
inline constexpr std::int64_t kLine = 20;    ///< pixels from one line of small text to the next

/// Units between ticks: the least power of two, as chunks are, that gives at most `ticks` steps.
[[nodiscard]] std::int64_t tick_step(std::int64_t n, std::int64_t ticks);

/// A tick below (x, y), its label centred under it but within `from` .. `to`.
void draw_tick(Canvas& canvas, const GlyphSheet& glyphs, std::int64_t x, std::int64_t y,
               const std::string& label, std::int64_t from, std::int64_t to);

/// One line of text, centred in `width` pixels from x on.
void draw_centred(Canvas& canvas, const GlyphSheet& glyphs, std::int64_t x, std::int64_t y,
                  std::int64_t width, const std::string& text);

}  // namespace headwater::cli
