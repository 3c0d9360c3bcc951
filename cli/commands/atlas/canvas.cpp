#include "cli/commands/atlas/canvas.hpp"

#include <algorithm>
#include <cmath>

namespace headwater::cli {
namespace {

constexpr char kFirst = ' ';
constexpr char kLast = '~';
constexpr std::int64_t kGlyphs = kLast - kFirst + 1;
constexpr double kFull = 255.0;

std::uint8_t mixed(std::uint8_t below, std::uint8_t above, double alpha) {
  return static_cast<std::uint8_t>(std::lround(below + (above - below) * alpha));
}

}  // namespace

GlyphSheet::GlyphSheet(std::span<const std::byte> png) : image_(decode_grey_png(png)) {}

std::int64_t GlyphSheet::cell_width() const { return image_.width / kGlyphs; }

std::int64_t GlyphSheet::cell(char c) { return (c < kFirst || c > kLast ? '?' : c) - kFirst; }

std::int64_t GlyphSheet::advance(char c) const {
  return image_.pixels[static_cast<std::size_t>(cell(c) * cell_width())];
}

std::int64_t GlyphSheet::width(std::string_view text) const {
  std::int64_t width = 0;
  for (const char c : text) width += advance(c);
  return width;
}

int GlyphSheet::ink(char c, std::int64_t x, std::int64_t y) const {
  if (x == 0 && y == 0) return 0;  // the advance
  return image_.pixels[static_cast<std::size_t>(y * image_.width + cell(c) * cell_width() + x)];
}

Canvas::Canvas(std::int64_t width, std::int64_t height, Colour background) {
  image_ = {width, height, 3, std::vector<std::uint8_t>(static_cast<std::size_t>(width * height * 3))};
  fill(0, 0, width, height, background);
}

void Canvas::blend(std::int64_t x, std::int64_t y, Colour colour, double alpha) {
  if (x < 0 || y < 0 || x >= image_.width || y >= image_.height) return;
  std::uint8_t* const pixel = image_.pixels.data() + (y * image_.width + x) * 3;
  pixel[0] = mixed(pixel[0], colour.red, alpha);
  pixel[1] = mixed(pixel[1], colour.green, alpha);
  pixel[2] = mixed(pixel[2], colour.blue, alpha);
}

void Canvas::fill(std::int64_t x, std::int64_t y, std::int64_t width, std::int64_t height, Colour colour,
                  double alpha) {
  const std::int64_t right = std::min(x + width, image_.width);
  const std::int64_t bottom = std::min(y + height, image_.height);
  for (std::int64_t row = std::max<std::int64_t>(y, 0); row < bottom; ++row) {
    for (std::int64_t column = std::max<std::int64_t>(x, 0); column < right; ++column) {
      blend(column, row, colour, alpha);
    }
  }
}

void Canvas::curve(std::int64_t x, std::span<const double> y, const LineStyle& style) {
  double length = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    // From half-way to the neighbour on the left to half-way to the one on the right.
    const double left = i == 0 ? y[i] : (y[i - 1] + y[i]) / 2;
    const double right = i + 1 == y.size() ? y[i] : (y[i] + y[i + 1]) / 2;
    const auto [low, high] = std::minmax({left, y[i], right});
    length += std::hypot(1.0, high - low);
    if (style.gap > 0 && std::fmod(length, style.dash + style.gap) >= style.dash) continue;
    const double top = low - style.width / 2, bottom = high + style.width / 2;
    for (auto row = std::llround(std::floor(top)); row <= std::llround(bottom); ++row) {
      const double covered =
          std::min(bottom, static_cast<double>(row + 1)) - std::max(top, static_cast<double>(row));
      if (covered > 0) blend(x + static_cast<std::int64_t>(i), row, style.colour, std::min(1.0, covered));
    }
  }
}

void Canvas::text(std::int64_t x, std::int64_t y, std::string_view text, const GlyphSheet& glyphs,
                  Colour colour) {
  for (const char c : text) {
    for (std::int64_t row = 0; row < glyphs.height(); ++row) {
      for (std::int64_t column = 0; column < glyphs.cell_width(); ++column) {
        const int ink = glyphs.ink(c, column, row);
        if (ink > 0) blend(x + column, y + row, colour, ink / kFull);
      }
    }
    x += glyphs.advance(c);
  }
}

void Canvas::text_right(std::int64_t x, std::int64_t y, std::string_view text, const GlyphSheet& glyphs,
                        Colour colour) {
  this->text(x - glyphs.width(text), y, text, glyphs, colour);
}

}  // namespace headwater::cli
