#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/gguf/gguf.hpp"
#include "runtime/gguf/metadata.hpp"

namespace headwater::runtime {

/// One physical file, read and checked as a whole.
struct FilePart {
  std::uint32_t version = 0;
  Metadata metadata;
  std::vector<Tensor> tensors;  ///< in the file's order; names differ, data does not overlap
  std::string gap;              ///< what lies between two tensors beyond padding, in words; empty: nothing
};

/// Reads a file of version 2 or 3 (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): header, metadata, tensor
/// table; then checks that every tensor lies inside the data part, at a multiple of general.alignment, alone. Views into `bytes`. Error(invalid_argument) naming the file, the tensor or key, the value and what is allowed.
[[nodiscard]] FilePart read_file_part(std::span<const std::byte> bytes, std::string_view file);

}  // namespace headwater::runtime
