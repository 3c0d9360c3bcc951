#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/support/safetensors.hpp"
#include "headwater/session.hpp"
#include "runtime/support/mapped_file.hpp"

namespace headwater::cli {

/// q, k or v: [n, heads, width] in the mapped file.
struct InputTensor {
  const std::byte* data = nullptr;
  std::uint64_t file_offset = 0;
  DType type = DType::f32;
  std::int64_t n = 0;
  std::int64_t heads = 0;
  std::int64_t width = 0;

  [[nodiscard]] std::uint64_t row_bytes() const {
    return static_cast<std::uint64_t>(heads * width) * dtype_size(type);
  }
  /// The rows of tokens base, base + 1, ...
  [[nodiscard]] Rows from(std::int64_t base) const {
    return Rows::token_major(data + static_cast<std::uint64_t>(base) * row_bytes(), type, heads, width);
  }
};

/// A checked input of `attend`.
struct AttendInput {
  InputTensor q, k, v;
  std::vector<float> sinks;           ///< empty or Hq
  std::vector<float> alibi;           ///< empty or Hq
  std::vector<std::string> warnings;  ///< tensors that are not used
};

/// Finds and checks the tensors of `file` (types, dimensions, CFG-1, the limits of Shape). Failure naming file and
/// tensor, value and what is allowed otherwise. The views are valid as long as the file.
[[nodiscard]] AttendInput read_attend_input(const runtime::MappedFile& file);

/// Counts the NaN and infinities of a tensor, slice after slice.
class NonFinite {
 public:
  NonFinite(std::string name, const InputTensor& tensor) : name_(std::move(name)), tensor_(tensor) {}
  /// Looks through the rows of tokens [begin, end).
  void scan(std::int64_t begin, std::int64_t end);
  /// One line with the count and the first place; empty if there were none.
  [[nodiscard]] std::string warning() const;

 private:
  std::string name_;
  InputTensor tensor_;
  std::uint64_t count_ = 0;
  std::uint64_t first_ = 0;  // element
};

}  // namespace headwater::cli
