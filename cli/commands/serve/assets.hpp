#pragma once

#include <string_view>

/// The chat page of `headwater serve`: files of page/, compiled in.
namespace headwater::cli::assets {

[[nodiscard]] std::string_view serve_page();
[[nodiscard]] std::string_view serve_style();
[[nodiscard]] std::string_view serve_script();

}  // namespace headwater::cli::assets
