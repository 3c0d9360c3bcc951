#include "runtime/gguf/metadata.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <type_traits>

#include "headwater/testing/sabotage.hpp"
#include "runtime/support/fnv.hpp"
#include "runtime/support/utf8.hpp"

namespace headwater::runtime {
namespace {

constexpr std::uint64_t kLargestKey = 65535;             // the format's limit
constexpr std::uint64_t kSmallestEntry = 8 + 1 + 4 + 1;  // length and bytes of a key, type, value
constexpr std::uint64_t kTextLength = 8;                 // bytes in front of a text

struct TypeFacts {
  std::string_view name;
  std::uint64_t bytes;  ///< of one value; 0 where that varies
};

constexpr TypeFacts kFacts[] = {{"UINT8", 1},  {"INT8", 1},    {"UINT16", 2}, {"INT16", 2},  {"UINT32", 4},
                                {"INT32", 4},  {"FLOAT32", 4}, {"BOOL", 1},   {"STRING", 0}, {"ARRAY", 0},
                                {"UINT64", 8}, {"INT64", 8},   {"FLOAT64", 8}};

const TypeFacts& facts(ValueType type) { return kFacts[static_cast<std::size_t>(type)]; }

ValueType read_type(Reader& reader, const std::string& what) {
  const auto number = reader.number<std::uint32_t>(what);
  if (number >= std::size(kFacts)) {
    reader.refuse(
        fmt::format("{} has value type {}; GGUF knows 0 .. {}", what, number, std::size(kFacts) - 1));
  }
  return static_cast<ValueType>(number);
}

/// Reads the texts of an array one after the other.
std::uint64_t text_array_bytes(Reader reader, std::uint64_t count, const std::string& what) {
  const std::uint64_t begin = reader.offset();
  for (std::uint64_t i = 0; i < count; ++i) reader.text(what);
  return reader.offset() - begin;
}

void check_booleans(const Reader& reader, std::span<const std::byte> values, const std::string& what) {
  for (const std::byte value : values) {
    if (std::to_integer<unsigned>(value) > 1) {
      reader.refuse(
          fmt::format("{} holds a boolean of {}; allowed: 0, 1", what, std::to_integer<unsigned>(value)));
    }
  }
}

/// Elements of `entry`, whose type and count are known: the bytes that they take.
std::span<const std::byte> read_values(Reader& reader, const MetadataEntry& entry, const std::string& what) {
  const std::uint64_t smallest = entry.type == ValueType::text ? kTextLength : facts(entry.type).bytes;
  // Before anything is read or allocated: a count that the file cannot hold is refused here.
  if (entry.count > reader.remaining() / smallest) {
    reader.refuse(fmt::format("{} says {} elements of {} or more bytes, but {} bytes are left", what,
                              entry.count, smallest, reader.remaining()));
  }
  const std::uint64_t bytes = entry.type == ValueType::text ? text_array_bytes(reader, entry.count, what)
                                                            : entry.count * facts(entry.type).bytes;
  const std::span<const std::byte> values = reader.take(bytes, what);
  if (entry.type == ValueType::boolean) check_booleans(reader, values, what);
  return values;
}

MetadataEntry read_entry(Reader& reader, std::uint64_t index) {
  MetadataEntry entry;
  entry.key = reader.text(fmt::format("metadata key {}", index));
  if (entry.key.empty() || entry.key.size() > kLargestKey) {
    reader.refuse(
        fmt::format("metadata key {} has {} bytes; allowed: 1 .. {}", index, entry.key.size(), kLargestKey));
  }
  const std::string what = fmt::format("key {}", quoted(entry.key));
  entry.type = read_type(reader, what);
  if (entry.type == ValueType::array) {
    entry.is_array = true;
    entry.type = read_type(reader, what);
    if (entry.type == ValueType::array)
      reader.refuse(fmt::format("{} is an array of arrays, which is not supported", what));
    entry.count = reader.number<std::uint64_t>(what);
  }
  entry.values = read_values(reader, entry, what);
  return entry;
}

template <typename T>
T load(const MetadataEntry& entry, std::uint64_t index) {
  T value{};
  std::memcpy(&value, entry.values.data() + index * sizeof value, sizeof value);
  return value;
}

bool is_integer(ValueType type) {
  return type <= ValueType::i32 || type == ValueType::u64 || type == ValueType::i64;
}

bool is_number(ValueType type) {
  return is_integer(type) || type == ValueType::f32 || type == ValueType::f64;
}

}  // namespace

Metadata::Metadata(Reader& reader, std::uint64_t count) : file_(reader.file()) {
  if (count > reader.remaining() / kSmallestEntry) {
    reader.refuse(fmt::format("says {} metadata entries, but {} bytes are left", count, reader.remaining()));
  }
  for (std::uint64_t i = 0; i < count; ++i) {
    entries_.push_back(read_entry(reader, i));
    if (!by_key_.emplace(entries_.back().key, i).second)
      refuse(entries_.back().key, "stands in the file twice");
  }
}

const MetadataEntry* Metadata::find(std::string_view key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? nullptr : &entries_[found->second];
}

void Metadata::replace(const Replacement& with) {
  const auto place = replaced_.insert_or_assign(with.key, Replaced{{}, with.source}).first;
  MetadataEntry entry;
  entry.key = place->first;
  std::string& bytes = place->second.bytes;
  const auto store = [&](ValueType type, const auto& number) {
    entry.type = type;
    bytes.assign(reinterpret_cast<const char*>(&number), sizeof number);
  };
  if (const auto* const text = std::get_if<std::string>(&with.value)) {
    store(ValueType::text, static_cast<std::uint64_t>(text->size()));
    bytes += *text;
  } else if (const auto* const number = std::get_if<float>(&with.value)) {
    store(ValueType::f32, *number);
  } else {
    store(ValueType::i64, std::get<std::int64_t>(with.value));
  }
  entry.values = std::as_bytes(std::span(bytes));
  const auto [found, is_new] = by_key_.emplace(entry.key, entries_.size());
  if (is_new) {
    entries_.push_back(entry);
  } else {
    entries_[found->second] = entry;
  }
}

std::uint64_t Metadata::hash_replaced(std::uint64_t hash) const {
  for (const auto& [key, with] : replaced_) {
    hash = fnv1a(std::as_bytes(std::span(with.bytes)), fnv1a(std::as_bytes(std::span(key)), hash));
  }
  return hash;
}

std::string_view Metadata::spoken(std::string_view key) const {
  const auto found = replaced_.find(key);
  return found == replaced_.end() ? key : found->second.source;
}

void Metadata::refuse(std::string_view key, const std::string& problem) const {
  const std::string name = replaced(key) ? std::string(spoken(key)) : "key " + quoted(key);
  refuse_file(file_, fmt::format("{} {}", name, problem));
}

void Metadata::refuse_type(const MetadataEntry& entry, std::string_view needed) const {
  refuse(entry.key, fmt::format("is {}{}; it must be {}", entry.is_array ? "an array of " : "of type ",
                                facts(entry.type).name, needed));
}

const MetadataEntry& Metadata::need(std::string_view key, bool is_array) const {
  const MetadataEntry* const entry = find(key);
  if (entry == nullptr) refuse(key, "is missing");
  if (entry->is_array != is_array) refuse_type(*entry, is_array ? "an array" : "a single value");
  return *entry;
}

std::int64_t Metadata::integer_at(const MetadataEntry& entry, std::uint64_t index) const {
  switch (entry.type) {
    case ValueType::u8: return load<std::uint8_t>(entry, index);
    case ValueType::i8: return load<std::int8_t>(entry, index);
    case ValueType::u16: return load<std::uint16_t>(entry, index);
    case ValueType::i16: return load<std::int16_t>(entry, index);
    case ValueType::u32: return load<std::uint32_t>(entry, index);
    case ValueType::i32: return load<std::int32_t>(entry, index);
    case ValueType::i64: return load<std::int64_t>(entry, index);
    case ValueType::u64: break;
    default: refuse_type(entry, "an integer");
  }
  const auto value = load<std::uint64_t>(entry, index);
  if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    refuse(entry.key, fmt::format("is {}; allowed: below 2^63", value));
  }
  return static_cast<std::int64_t>(value);
}

double Metadata::number_at(const MetadataEntry& entry, std::uint64_t index) const {
  if (!is_number(entry.type)) refuse_type(entry, "a number");
  const double value = entry.type == ValueType::f32   ? static_cast<double>(load<float>(entry, index))
                       : entry.type == ValueType::f64 ? load<double>(entry, index)
                                                      : static_cast<double>(integer_at(entry, index));
  if (!std::isfinite(value)) refuse(entry.key, fmt::format("holds {}; it must be finite", value));
  return value;
}

std::int64_t Metadata::integer(std::string_view key, std::int64_t min, std::int64_t max) const {
  const std::int64_t value = integer_at(need(key, false), 0);
  if (value < min || value > max) refuse(key, fmt::format("is {}; allowed: {} .. {}", value, min, max));
  return value;
}

double Metadata::number(std::string_view key) const { return number_at(need(key, false), 0); }

bool Metadata::boolean(std::string_view key) const {
  const MetadataEntry& entry = need(key, false);
  if (entry.type != ValueType::boolean) refuse_type(entry, "BOOL");
  return load<std::uint8_t>(entry, 0) != 0;
}

std::string_view Metadata::text(std::string_view key) const {
  const MetadataEntry& entry = need(key, false);
  if (entry.type != ValueType::text) refuse_type(entry, "STRING");
  return Reader(entry.values, file_).text(key);
}

std::vector<std::string_view> Metadata::texts(std::string_view key) const {
  const MetadataEntry& entry = need(key, true);
  if (entry.type != ValueType::text) refuse_type(entry, "an array of STRING");
  std::vector<std::string_view> texts;
  texts.reserve(entry.count);
  Reader reader(entry.values, file_);
  for (std::uint64_t i = 0; i < entry.count; ++i) texts.push_back(reader.text(key));
  return texts;
}

std::vector<std::int64_t> Metadata::integers(std::string_view key) const {
  const MetadataEntry& entry = need(key, true);
  if (!is_integer(entry.type)) refuse_type(entry, "an array of integers");
  std::vector<std::int64_t> values(entry.count);
  const bool narrow = HEADWATER_SABOTAGE("runtime.gguf.element_in_16_bits");
  for (std::uint64_t i = 0; i < entry.count; ++i) values[i] = integer_at(entry, narrow ? i & 0xFFFF : i);
  return values;
}

std::vector<double> Metadata::numbers(std::string_view key) const {
  const MetadataEntry& entry = need(key, true);
  if (!is_number(entry.type)) refuse_type(entry, "an array of numbers");
  std::vector<double> values(entry.count);
  for (std::uint64_t i = 0; i < entry.count; ++i) values[i] = number_at(entry, i);
  return values;
}

std::vector<bool> Metadata::booleans(std::string_view key) const {
  const MetadataEntry& entry = need(key, true);
  if (entry.type != ValueType::boolean) refuse_type(entry, "an array of BOOL");
  std::vector<bool> values(entry.count);
  for (std::uint64_t i = 0; i < entry.count; ++i) values[i] = load<std::uint8_t>(entry, i) != 0;
  return values;
}

std::uint64_t Metadata::array_length(std::string_view key) const { return need(key, true).count; }

}  // namespace headwater::runtime
