#pragma once

#include <string>

namespace headwater::cli {

/// The bytes of a text file, or of standard input where `path` is "-"; `flag` names it in errors. Failure where it
/// cannot be read, is a directory, or is larger than 1 GiB (no model reads that many tokens).
[[nodiscard]] std::string read_text(const char* flag, const std::string& path);

}  // namespace headwater::cli
