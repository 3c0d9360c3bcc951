#include "cli/commands/atlas/style.hpp"

#include <algorithm>

namespace headwater::cli {

std::int64_t tick_step(std::int64_t n, std::int64_t ticks) {
  std::int64_t step = 1;
  while (n / step > ticks) step *= 2;
  return step;
}

void draw_tick(Canvas& canvas, const GlyphSheet& glyphs, std::int64_t x, std::int64_t y,
               const std::string& label, std::int64_t from, std::int64_t to) {
  canvas.fill(x, y, 1, kTick, kFaint);
  const std::int64_t width = glyphs.width(label);
  canvas.text(std::max(from, std::min(x - width / 2, to - width)), y + kTick, label, glyphs, kFaint);
}

void draw_centred(Canvas& canvas, const GlyphSheet& glyphs, std::int64_t x, std::int64_t y,
                  std::int64_t width, const std::string& text) {
  canvas.text(x + (width - glyphs.width(text)) / 2, y, text, glyphs, kInk);
}

}  // namespace headwater::cli
