#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace headwater::fuzz {

/// Turns the bytes of a fuzzer into choices. An exhausted source continues with zeros, so every input is valid.
class ByteSource {
 public:
  explicit ByteSource(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  [[nodiscard]] bool empty() const { return bytes_.empty(); }

  std::uint8_t byte() {
    if (bytes_.empty()) return 0;
    const std::uint8_t value = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return value;
  }
  /// A number in [low, high], high - low < 256.
  std::int64_t range(std::int64_t low, std::int64_t high) { return low + byte() % (high - low + 1); }
  bool flag() { return byte() % 2 != 0; }
  /// Any 64-bit number.
  std::int64_t wide() {
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | byte();
    return static_cast<std::int64_t>(value);
  }

 private:
  std::span<const std::uint8_t> bytes_;
};

}  // namespace headwater::fuzz
