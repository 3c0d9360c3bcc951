#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headwater::conformance {

/// A JSON document of a file that is not trusted, read with nlohmann's parser into a tree of our own: nlohmann's tree
/// takes memory in its destructor, and ends the program where there is none; this one takes none.
struct JsonTree {
  enum class Kind : std::uint8_t { null, boolean, number, text, list, object };

  Kind kind = Kind::null;
  bool truth = false;
  double number = 0.0;            ///< Kind::number
  bool is_unsigned = false;       ///< the number is an integer 0 .. 2^64 - 1
  std::uint64_t integer = 0;      ///< where is_unsigned
  std::string text;               ///< Kind::text
  std::vector<JsonTree> items;    ///< Kind::list and Kind::object
  std::vector<std::string> keys;  ///< Kind::object: of items, in the file's order; a key may come twice

  [[nodiscard]] bool is(Kind wanted) const { return kind == wanted; }
  /// The item of the first such key, or null.
  [[nodiscard]] const JsonTree* find(std::string_view key) const;
};

/// Most brackets inside each other.
inline constexpr std::size_t kMostNesting = 32;

/// Errors: headwater::Error invalid_argument, "FROM: not JSON at byte N", or one that is nested deeper than kMostNesting;
/// std::bad_alloc.
[[nodiscard]] JsonTree parse_json(std::string_view text, const std::string& from);

}  // namespace headwater::conformance
