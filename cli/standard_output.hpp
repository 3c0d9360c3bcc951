#pragma once

#include <string_view>

namespace headwater::cli {

/// Writes to standard output and flushes. Failure where that is closed or full.
void print_out(std::string_view text);

}  // namespace headwater::cli
