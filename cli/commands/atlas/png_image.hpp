#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace headwater::cli {

/// Eight-bit pixels, row after row from the top, `channels` bytes each (1 grey, 3 RGB).
struct PixelImage {
  std::int64_t width = 0;
  std::int64_t height = 0;
  int channels = 3;
  std::vector<std::uint8_t> pixels;
};

/// A PNG file of the image, compressed; the same bytes for the same image. Failure where libpng fails.
[[nodiscard]] std::string encode_png(const PixelImage& image);

/// A grey image of a PNG file that this program carries. Failure where it is none.
[[nodiscard]] PixelImage decode_grey_png(std::span<const std::byte> file);

}  // namespace headwater::cli
