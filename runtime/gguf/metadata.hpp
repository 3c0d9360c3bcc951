#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/gguf/reader.hpp"
#include "runtime/gguf/replacement.hpp"

namespace headwater::runtime {

/// The value types of GGUF metadata; the numbers are the file's.
enum class ValueType : std::uint32_t {
  u8 = 0,
  i8 = 1,
  u16 = 2,
  i16 = 3,
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  text = 8,
  array = 9,
  u64 = 10,
  i64 = 11,
  f64 = 12,
};

/// One key and where its value lies in the file. Bounds were checked when it was read.
struct MetadataEntry {
  std::string_view key;
  ValueType type = ValueType::u8;  ///< of the value, or of the elements of an array; never `array`
  bool is_array = false;
  std::uint64_t count = 1;            ///< elements
  std::span<const std::byte> values;  ///< all elements, as stored
};

/// The key-value part of a file. Views into it: the file's bytes must outlive it. The getters are GgufFile's; see there.
class Metadata {
 public:
  Metadata() = default;
  /// Reads `count` entries: known types, keys of 1 .. 65535 bytes that differ, booleans of 0 or 1, no array of arrays.
  Metadata(Reader& reader, std::uint64_t count);

  [[nodiscard]] const MetadataEntry* find(std::string_view key) const;
  [[nodiscard]] const std::vector<MetadataEntry>& entries() const { return entries_; }

  /// As if the file had been written so.
  void replace(const Replacement& with);
  /// FNV-1a, going on from `hash`, of what was replaced: keys and values.
  [[nodiscard]] std::uint64_t hash_replaced(std::uint64_t hash) const;
  [[nodiscard]] bool replaced(std::string_view key) const { return replaced_.contains(key); }
  [[nodiscard]] std::string_view spoken(std::string_view key) const;

  [[nodiscard]] std::int64_t integer(std::string_view key, std::int64_t min, std::int64_t max) const;
  [[nodiscard]] double number(std::string_view key) const;
  [[nodiscard]] bool boolean(std::string_view key) const;
  [[nodiscard]] std::string_view text(std::string_view key) const;
  [[nodiscard]] std::vector<std::string_view> texts(std::string_view key) const;
  [[nodiscard]] std::vector<std::int64_t> integers(std::string_view key) const;
  [[nodiscard]] std::vector<double> numbers(std::string_view key) const;
  [[nodiscard]] std::vector<bool> booleans(std::string_view key) const;
  [[nodiscard]] std::uint64_t array_length(std::string_view key) const;

 private:
  struct Replaced {
    std::string bytes;  ///< of the value, as a file stores it
    std::string source;
  };
  [[nodiscard]] const MetadataEntry& need(std::string_view key, bool is_array) const;
  [[noreturn]] void refuse(std::string_view key, const std::string& problem) const;
  [[noreturn]] void refuse_type(const MetadataEntry& entry, std::string_view needed) const;
  [[nodiscard]] std::int64_t integer_at(const MetadataEntry& entry, std::uint64_t index) const;
  [[nodiscard]] double number_at(const MetadataEntry& entry, std::uint64_t index) const;

  std::string file_;
  std::vector<MetadataEntry> entries_;
  std::unordered_map<std::string_view, std::size_t> by_key_;
  std::map<std::string, Replaced, std::less<>> replaced_;  // entries look into it; it is never copied
};

}  // namespace headwater::runtime
