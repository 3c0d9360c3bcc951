#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "cli/commands/atlas/png_image.hpp"

namespace headwater::cli {

struct Colour {
  std::uint8_t red = 0, green = 0, blue = 0;
};

struct LineStyle {
  Colour colour;
  double width = 1.0;        ///< pixels
  double dash = 0, gap = 0;  ///< pixels along the line; gap 0: without gaps
};

/// A font as a grey picture: a cell for each character from space to tilde, side by side. The topmost, leftmost pixel of
/// a cell is the character's advance; the ink stands below (page/make_glyphs.py draws the sheets).
class GlyphSheet {
 public:
  explicit GlyphSheet(std::span<const std::byte> png);
  [[nodiscard]] std::int64_t height() const { return image_.height; }
  [[nodiscard]] std::int64_t width(std::string_view text) const;
  [[nodiscard]] std::int64_t advance(char c) const;
  /// Ink of a pixel of the character's cell, 0 .. 255.
  [[nodiscard]] int ink(char c, std::int64_t x, std::int64_t y) const;
  [[nodiscard]] std::int64_t cell_width() const;

 private:
  [[nodiscard]] static std::int64_t cell(char c);
  PixelImage image_;
};

/// What is drawn outside of the picture is left out.
class Canvas {
 public:
  Canvas(std::int64_t width, std::int64_t height, Colour background);
  [[nodiscard]] std::int64_t width() const { return image_.width; }
  [[nodiscard]] std::int64_t height() const { return image_.height; }
  [[nodiscard]] const PixelImage& image() const { return image_; }

  /// A rectangle from the left upper corner; alpha 0 leaves everything, 1 covers it.
  void fill(std::int64_t x, std::int64_t y, std::int64_t width, std::int64_t height, Colour colour,
            double alpha = 1.0);
  /// A polyline over columns x, x + 1, ..., at the heights y[0], y[1], ...
  void curve(std::int64_t x, std::span<const double> y, const LineStyle& style);
  /// One line of text, its left upper corner at (x, y); characters that are not ASCII become '?'.
  void text(std::int64_t x, std::int64_t y, std::string_view text, const GlyphSheet& glyphs, Colour colour);
  /// The same, ending at x.
  void text_right(std::int64_t x, std::int64_t y, std::string_view text, const GlyphSheet& glyphs,
                  Colour colour);

 private:
  void blend(std::int64_t x, std::int64_t y, Colour colour, double alpha);
  PixelImage image_;
};

}  // namespace headwater::cli
