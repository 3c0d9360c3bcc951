#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/gguf/metadata.hpp"

namespace headwater::runtime {

/// The names of all files of the model whose first file is `path` with this metadata: `path` alone for one that is not
/// split, else NAME-00001-of-0000n.gguf and so on. Error(invalid_argument) where `path` is not the first one or is not
/// called so.
[[nodiscard]] std::vector<std::string> split_files(const std::string& path, const Metadata& metadata);

/// Checks that a file with this metadata is number `index` (from 0) of `count`.
void check_split_part(const Metadata& metadata, std::int64_t index, std::int64_t count);

}  // namespace headwater::runtime
