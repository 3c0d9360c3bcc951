#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headwater/error.hpp"
#include "headwater/state.hpp"

namespace headwater::conformance {

/// A saved session in memory (STATE-12): what one session gives, another may take any number of times; tests damage the
/// parts in between.
class MemoryArchive final : public StateArchive {
 public:
  struct Array {
    Element type = Element::f32;
    std::vector<std::int64_t> dims;
    std::vector<std::byte> bytes;

    bool operator==(const Array&) const = default;
  };

  std::map<std::string, std::vector<std::int64_t>, std::less<>> lists;
  std::map<std::string, Array, std::less<>> arrays;

  /// From now on a session takes what the archive holds.
  void load() { loading_ = true; }

  [[nodiscard]] bool loading() const override { return loading_; }

  void numbers(std::string_view name, std::vector<std::int64_t>& values, std::int64_t most) override {
    if (!loading_) {
      refuse_twice(name, lists.emplace(name, values).second);
      return;
    }
    const auto found = lists.find(name);
    if (found == lists.end()) refuse(name, "missing", "numbers of this name");
    if (std::ssize(found->second) > most)
      refuse(name, "too long", "at most " + std::to_string(most) + " numbers");
    values = found->second;
  }

  void array(std::string_view name, Element type, std::span<const std::int64_t> dims,
             std::span<const Piece> pieces) override {
    if (!loading_) {
      Array given{type, {dims.begin(), dims.end()}, {}};
      for (const Piece& piece : pieces) {
        const auto* bytes = static_cast<const std::byte*>(piece.data);
        given.bytes.insert(given.bytes.end(), bytes, bytes + piece.bytes);
      }
      if (std::ssize(given.bytes) != size_of(type, dims))
        refuse(name, "not as long as its dimensions say", "it is");
      refuse_twice(name, arrays.emplace(name, std::move(given)).second);
      return;
    }
    const auto found = arrays.find(name);
    if (found == arrays.end()) refuse(name, "missing", "an array of this name");
    const Array& held = found->second;
    std::int64_t room = 0;
    for (const Piece& piece : pieces) room += piece.bytes;
    const bool same =
        held.type == type && std::equal(dims.begin(), dims.end(), held.dims.begin(), held.dims.end());
    if (!same || room != std::ssize(held.bytes))
      refuse(name, "of another type or shape", "those of the session");
    const std::byte* from = held.bytes.data();
    for (const Piece& piece : pieces) {
      std::copy_n(from, piece.bytes, static_cast<std::byte*>(piece.data));
      from += piece.bytes;
    }
  }

 private:
  [[noreturn]] static void refuse(std::string_view name, const std::string& what,
                                  const std::string& allowed) {
    throw Error(ErrorCode::invalid_argument, std::string(name) + " is " + what + "; allowed: " + allowed);
  }
  static void refuse_twice(std::string_view name, bool first) {
    if (!first) refuse(name, "given twice", "each part once");
  }
  static std::int64_t size_of(Element type, std::span<const std::int64_t> dims) {
    const std::int64_t element = type == Element::u8                            ? 1
                                 : type == Element::f32 || type == Element::i32 ? 4
                                                                                : 2;
    return std::accumulate(dims.begin(), dims.end(), element, std::multiplies<>());
  }

  bool loading_ = false;
};

}  // namespace headwater::conformance
