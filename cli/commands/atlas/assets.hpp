#pragma once

#include <cstddef>
#include <span>
#include <string_view>

/// The files of page/, compiled in.
namespace headwater::cli::assets {

[[nodiscard]] std::string_view page();    ///< page.html
[[nodiscard]] std::string_view style();   ///< page.css
[[nodiscard]] std::string_view script();  ///< data.js, model.js, draw.js and page.js, one after the other
/// Sheets of glyphs for the picture, PNG (see canvas.hpp).
[[nodiscard]] std::span<const std::byte> small_glyphs();
[[nodiscard]] std::span<const std::byte> large_glyphs();

}  // namespace headwater::cli::assets
