#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "conformance/problem.hpp"

namespace headwater::conformance {

/// How the rows of a step lie in memory.
enum class Placement {
  token_major,
  head_major,
  strided,    ///< gaps of poison between rows and between heads
  unaligned,  ///< token-major at an odd byte address
  guarded,    ///< the last row ends exactly at a page that must not be touched
};

/// One layer's rows of some tokens, ready for attend(). Owns the memory, with canaries on both sides, and checks
/// afterwards that nothing was written that must not be.
class Placed {
 public:
  /// An input: the tokens [first, first + n) of a tensor. Gaps hold NaN poison.
  Placed(Placement placement, const Tensor& from, std::int64_t first, std::int64_t n);
  /// An output of n x heads rows: filled with a poison that no rounding produces.
  Placed(Placement placement, DType type, std::int64_t n, std::int64_t heads, std::int64_t width);
  Placed(const Placed&) = delete;
  Placed& operator=(const Placed&) = delete;
  ~Placed();

  [[nodiscard]] Rows rows() const;
  [[nodiscard]] MutableRows mutable_rows();
  /// Throws Violation if anything outside the rows of an output, or anything at all of an input, was written.
  void check(const char* what) const;
  /// The rows as floats [n][heads][width]; throws Violation where poison was left.
  [[nodiscard]] std::vector<float> take() const;

 private:
  void allocate(Placement placement);
  [[nodiscard]] std::size_t offset(std::int64_t t, std::int64_t h, std::int64_t x) const;

  DType type_;
  std::int64_t n_, heads_, width_;
  std::int64_t row_stride_ = 0, head_stride_ = 0;
  std::size_t origin_ = 0;  // of row 0 of head 0, bytes after block_
  std::byte* block_ = nullptr;
  std::size_t block_size_ = 0;    // bytes that may be read
  std::size_t mapped_ = 0;        // > 0: block_ came from mmap, the guard page included
  std::vector<std::byte> image_;  // the block as it must stay
  std::vector<char> writable_;    // per byte: an element of an output
};

}  // namespace headwater::conformance
