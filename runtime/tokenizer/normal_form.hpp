#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace headwater::runtime {

/// `text`, which is well-formed UTF-8, in Unicode's normal form C (UAX 15, by utf8proc); none where it is in that form, and
/// so need not be copied.
[[nodiscard]] std::optional<std::string> composed(std::string_view text);

}  // namespace headwater::runtime
