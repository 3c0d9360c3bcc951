#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "conformance/case.hpp"

namespace headwater::conformance {

inline constexpr std::size_t kGuardBytes = 256;  // on each side of what a plug-in is handed
inline constexpr unsigned char kGuard = 0xa5;

/// Values of one type between canaries, for one call of a plug-in.
template <class Value>
class Guarded {
  static_assert(std::is_trivially_copyable_v<Value>);

 public:
  explicit Guarded(std::size_t count, unsigned char fill = 0) {
    bytes_.assign(kGuardBytes + count * sizeof(Value) + kGuardBytes, kGuard);
    std::memset(data(), fill, count * sizeof(Value));
    count_ = count;
  }
  explicit Guarded(const std::vector<Value>& values)
      : bytes_(kGuardBytes + values.size() * sizeof(Value) + kGuardBytes, kGuard), count_(values.size()) {
    if (!values.empty()) std::memcpy(data(), values.data(), values.size() * sizeof(Value));
    remember();
  }
  /// An input of one value, which must stay as it is.
  static Guarded input(const Value& value) { return Guarded(std::vector<Value>{value}); }

  [[nodiscard]] Value* data() { return reinterpret_cast<Value*>(bytes_.data() + kGuardBytes); }
  [[nodiscard]] Value& value() { return *data(); }
  [[nodiscard]] std::vector<Value> values() {
    std::vector<Value> copy(count_);
    if (count_ > 0) std::memcpy(copy.data(), data(), count_ * sizeof(Value));
    return copy;
  }
  /// Throws Violation where something around the values was written, or the values of an input.
  void check(const std::string& what) const {
    const std::size_t size = count_ * sizeof(Value);
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      const bool inside = i >= kGuardBytes && i < kGuardBytes + size;
      if (inside ? image_.empty() || bytes_[i] == image_[i - kGuardBytes] : bytes_[i] == kGuard) continue;
      const auto at = static_cast<long long>(i) - static_cast<long long>(kGuardBytes);
      throw Violation(what + ": byte " + std::to_string(at) + " was written (" + std::to_string(size) +
                      " bytes, " + (image_.empty() ? "an output" : "an input that must not be changed") +
                      ")");
    }
  }
  /// Overwrites the values: what the plug-in kept a pointer to is no longer there.
  void spoil() { std::memset(data(), 0xff, count_ * sizeof(Value)); }

 private:
  void remember() { image_.assign(bytes_.begin() + kGuardBytes, bytes_.end() - kGuardBytes); }

  std::vector<unsigned char> bytes_;  // operator new aligns it for every Value
  std::vector<unsigned char> image_;  // of an input
  std::size_t count_ = 0;
};

}  // namespace headwater::conformance
