#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace headwater::runtime::testing {

/// Memory on a boundary of a cache line, with canaries after it.
class Lines {
 public:
  explicit Lines(std::size_t bytes) : memory_(bytes + 64 + 1, std::byte{0x5A}), bytes_(bytes) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    at_ = memory_.data() + (64 - address % 64) % 64;
  }
  [[nodiscard]] std::byte* data() { return at_; }
  [[nodiscard]] bool intact() const { return at_[bytes_] == std::byte{0x5A}; }

 private:
  std::vector<std::byte> memory_;
  std::byte* at_ = nullptr;
  std::size_t bytes_;
};

}  // namespace headwater::runtime::testing
