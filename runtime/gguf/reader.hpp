#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

namespace headwater::runtime {

/// Error(invalid_argument): "'FILE': problem".
[[noreturn]] void refuse_file(std::string_view file, const std::string& problem);

/// Reads a file from front to back and never past its end. Numbers are little-endian.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, std::string_view file) : bytes_(bytes), file_(file) {}

  [[nodiscard]] std::string_view file() const { return file_; }
  [[nodiscard]] std::uint64_t offset() const { return at_; }
  [[nodiscard]] std::uint64_t remaining() const { return bytes_.size() - at_; }
  [[noreturn]] void refuse(const std::string& problem) const { refuse_file(file_, problem); }

  /// `what` is named where the file ends before it.
  template <typename T>
  T number(std::string_view what) {
    T value{};
    std::memcpy(&value, take(sizeof value, what).data(), sizeof value);
    return value;
  }

  /// A length in 8 bytes, and so many bytes.
  std::string_view text(std::string_view what) {
    const auto length = number<std::uint64_t>(what);
    const std::span<const std::byte> bytes = take(length, what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  std::span<const std::byte> take(std::uint64_t count, std::string_view what);

 private:
  std::span<const std::byte> bytes_;
  std::string_view file_;
  std::uint64_t at_ = 0;
};

}  // namespace headwater::runtime
