#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cli/support/output_file.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cli {

/// Writes a tensor of 4-byte elements from front to back.
template <typename Element>
class TensorStream {
  static constexpr std::size_t kBufferEntries = std::size_t{1}
                                                << 18;  ///< 1 MiB: few system calls, little memory

 public:
  TensorStream(OutputFile& file, std::uint64_t offset) : file_(file), offset_(offset) {
    buffer_.reserve(kBufferEntries);
  }
  void append(std::span<const Element> values) {
    while (!values.empty()) {
      const auto part = values.first(std::min(values.size(), kBufferEntries - buffer_.size()));
      buffer_.insert(buffer_.end(), part.begin(), part.end());
      values = values.subspan(part.size());
      if (buffer_.size() == kBufferEntries) flush();
    }
  }
  void fill(std::int64_t count, Element value) {
    while (count > 0) {
      const auto part = std::min(count, static_cast<std::int64_t>(kBufferEntries - buffer_.size()));
      buffer_.insert(buffer_.end(), static_cast<std::size_t>(part), value);
      count -= part;
      if (buffer_.size() == kBufferEntries) flush();
    }
  }
  void flush() {
    file_.write_at(offset_, std::as_bytes(std::span<const Element>(buffer_)));
    if (!HEADWATER_SABOTAGE("cli.recorder.second_buffer_over_the_first")) {
      offset_ += buffer_.size() * sizeof(Element);
    }
    buffer_.clear();
  }

 private:
  OutputFile& file_;
  std::uint64_t offset_;
  std::vector<Element> buffer_;
};

}  // namespace headwater::cli
