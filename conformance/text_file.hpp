#pragma once

#include <cstddef>
#include <string>

namespace headwater::conformance {

/// All bytes of a regular file of at most `most` bytes. Errors: headwater::Error invalid_argument in one line that names
/// the file.
[[nodiscard]] std::string read_text(const std::string& path, std::size_t most);

/// Writes `text` to a file by way of a temporary one that is renamed, or to standard output for "-". Errors:
/// headwater::Error invalid_argument; nothing half-written is left.
void write_text(const std::string& path, const std::string& text);

/// Fails as write_text() would for lack of a folder or of a right, and writes nothing: called before a long run.
void require_writable(const std::string& path);

/// Makes a folder where there is none; its parent must be there. Errors: headwater::Error invalid_argument.
void make_folder(const std::string& path);

}  // namespace headwater::conformance
