#include "cli/commands/atlas/png_image.hpp"

#include <fmt/format.h>
#include <png.h>

#include "cli/support/failure.hpp"

namespace headwater::cli {
namespace {

[[noreturn]] void fail(const png_image& image) {
  throw Failure(fmt::format("libpng: {}", static_cast<const char*>(image.message)));
}

/// libpng's own description of a whole image (its "simplified API", which needs no longjmp of the caller).
png_image describe(const PixelImage& image) {
  png_image description{};
  description.version = PNG_IMAGE_VERSION;
  description.width = static_cast<png_uint_32>(image.width);
  description.height = static_cast<png_uint_32>(image.height);
  description.format = image.channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  return description;
}

}  // namespace

std::string encode_png(const PixelImage& image) {
  png_image description = describe(image);
  png_alloc_size_t bytes = 0;
  if (png_image_write_get_memory_size(description, bytes, 0, image.pixels.data(), 0, nullptr) == 0) {
    fail(description);
  }
  std::string file(bytes, '\0');
  if (png_image_write_to_memory(&description, file.data(), &bytes, 0, image.pixels.data(), 0, nullptr) == 0) {
    fail(description);
  }
  file.resize(bytes);
  return file;
}

PixelImage decode_grey_png(std::span<const std::byte> file) {
  png_image description{};
  description.version = PNG_IMAGE_VERSION;
  if (png_image_begin_read_from_memory(&description, file.data(), file.size()) == 0) fail(description);
  description.format = PNG_FORMAT_GRAY;
  PixelImage image{description.width, description.height, 1, {}};
  image.pixels.resize(PNG_IMAGE_SIZE(description));
  if (png_image_finish_read(&description, nullptr, image.pixels.data(), 0, nullptr) == 0) fail(description);
  return image;
}

}  // namespace headwater::cli
