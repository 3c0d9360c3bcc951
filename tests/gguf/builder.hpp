#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headwater/error.hpp"
#include "runtime/gguf/gguf.hpp"

namespace headwater::runtime::testing {

/// Value types as a file numbers them.
enum : std::uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kText, kArray, kU64, kI64, kF64 };
inline constexpr std::uint32_t kF32Tensor = 0;

/// Bytes in a row, written by hand.
class Bytes {
 public:
  template <typename T>
  Bytes& number(T value) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof value);
    std::memcpy(bytes_.data() + at, &value, sizeof value);
    return *this;
  }
  Bytes& text(std::string_view text) { return number<std::uint64_t>(text.size()).raw(text); }
  Bytes& raw(std::string_view text) {
    for (const char c : text) bytes_.push_back(static_cast<std::byte>(c));
    return *this;
  }
  Bytes& append(const Bytes& other) {
    bytes_.insert(bytes_.end(), other.bytes_.begin(), other.bytes_.end());
    return *this;
  }
  Bytes& pad_to(std::size_t multiple) {
    while (bytes_.size() % multiple != 0) bytes_.push_back(std::byte{0});
    return *this;
  }
  Bytes& zeros(std::size_t count) {
    bytes_.resize(bytes_.size() + count);
    return *this;
  }
  [[nodiscard]] std::size_t size() const { return bytes_.size(); }
  [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }
  [[nodiscard]] std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// A GGUF file, right or wrong.
struct Builder {
  std::string magic = "GGUF";
  std::uint32_t version = 3;
  Bytes metadata;
  std::uint64_t entries = 0;
  Bytes tensors;
  std::uint64_t tensor_count = 0;
  std::size_t alignment = 32;
  std::size_t data_bytes = 0;

  template <typename T>
  Builder& add(std::string_view key, std::uint32_t type, T value) {
    metadata.text(key).number(type).number(value);
    ++entries;
    return *this;
  }
  Builder& add_text(std::string_view key, std::string_view value) {
    metadata.text(key).number<std::uint32_t>(kText).text(value);
    ++entries;
    return *this;
  }
  Builder& add_texts(std::string_view key, const std::vector<std::string>& values) {
    metadata.text(key).number<std::uint32_t>(kArray).number<std::uint32_t>(kText).number<std::uint64_t>(
        values.size());
    for (const std::string& value : values) metadata.text(value);
    ++entries;
    return *this;
  }
  template <typename T>
  Builder& add_array(std::string_view key, std::uint32_t type, const std::vector<T>& values) {
    metadata.text(key).number<std::uint32_t>(kArray).number(type).number<std::uint64_t>(values.size());
    for (const T value : values) metadata.number(value);
    ++entries;
    return *this;
  }
  Builder& add_tensor(std::string_view name, const std::vector<std::uint64_t>& dims, std::uint32_t type,
                      std::uint64_t offset) {
    tensors.text(name).number(static_cast<std::uint32_t>(dims.size()));
    for (const std::uint64_t size : dims) tensors.number(size);
    tensors.number(type).number(offset);
    ++tensor_count;
    return *this;
  }

  [[nodiscard]] std::vector<std::byte> build() const {
    Bytes file;
    file.raw(magic).number(version).number(tensor_count).number(entries).append(metadata).append(tensors);
    if (data_bytes > 0) file.pad_to(alignment).zeros(data_bytes);
    return file.bytes();
  }
};

/// The message of the Error that `action` ends with; empty if it does not.
template <typename Action>
std::string refusal(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.code() == ErrorCode::invalid_argument ? error.what() : "wrong code";
  }
  return {};
}

inline std::string refusal_of(const std::vector<std::byte>& bytes) {
  return refusal([&] { (void)GgufFile::parse(bytes, "m.gguf"); });
}

}  // namespace headwater::runtime::testing
