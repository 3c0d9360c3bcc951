#include "runtime/gguf/file_part.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <unordered_set>

#include "runtime/support/utf8.hpp"

namespace headwater::runtime {
namespace {

constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr std::int64_t kDefaultAlignment = 32;
constexpr std::int64_t kLargestAlignment = 1 << 20;
constexpr std::uint64_t kLongestName = 64;  // the format's limit
constexpr std::uint32_t kMostDimensions = 4;
constexpr std::uint64_t kSmallestTensorEntry = 8 + 1 + 4 + 8 + 4 + 8;  // name, dimensions, type, offset

struct TensorEntry {
  Tensor tensor;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

std::string named(const Tensor& tensor) { return fmt::format("tensor {}", quoted(tensor.name)); }

std::uint32_t read_version(Reader& reader) {
  if (reader.number<std::uint32_t>("the GGUF magic") != kMagic) {
    reader.refuse("is not a GGUF file: it does not begin with \"GGUF\"");
  }
  const auto version = reader.number<std::uint32_t>("the GGUF version");
  if (version == 2 || version == 3) return version;
  const std::uint32_t swapped = __builtin_bswap32(version);
  if (swapped == 2 || swapped == 3)
    reader.refuse("is a big-endian GGUF file; only little-endian ones are read");
  reader.refuse(fmt::format("is of GGUF version {}; supported: 2, 3", version));
}

std::vector<std::int64_t> read_dimensions(Reader& reader, const std::string& what) {
  const auto count = reader.number<std::uint32_t>(what);
  if (count < 1 || count > kMostDimensions) {
    reader.refuse(fmt::format("{} has {} dimensions; allowed: 1 .. {}", what, count, kMostDimensions));
  }
  std::vector<std::int64_t> dims;
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto size = reader.number<std::uint64_t>(what);
    if (size < 1 || size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      reader.refuse(fmt::format("{}: dimension {} is {}; allowed: 1 .. 2^63 - 1", what, i, size));
    }
    dims.push_back(static_cast<std::int64_t>(size));
  }
  return dims;
}

TensorType read_tensor_type(Reader& reader, const std::string& what) {
  const auto id = reader.number<std::uint32_t>(what);
  if (const auto type = tensor_type_of(id)) return *type;
  const std::string_view name = ggml_type_name(id);
  reader.refuse(fmt::format("{} is of type {}; supported: {}", what,
                            name.empty() ? fmt::format("number {}", id) : std::string(name),
                            tensor_type_list()));
}

/// Bytes of a tensor. The product is checked in elements, whose number is at least half of that of the bytes.
std::uint64_t tensor_bytes(const Reader& reader, const Tensor& tensor) {
  const TensorTypeInfo& info = tensor_type_info(tensor.type);
  if (tensor.dims[0] % info.block_elements != 0) {
    reader.refuse(fmt::format("{}: rows of {} elements; of type {} a row must be a multiple of {}",
                              named(tensor), tensor.dims[0], info.name, info.block_elements));
  }
  std::int64_t bytes = info.block_bytes;
  bool overflow = __builtin_mul_overflow(bytes, tensor.dims[0] / info.block_elements, &bytes);
  std::int64_t elements = 1;
  for (std::size_t i = 0; i < tensor.dims.size(); ++i) {
    overflow |= __builtin_mul_overflow(elements, tensor.dims[i], &elements);
    if (i > 0) overflow |= __builtin_mul_overflow(bytes, tensor.dims[i], &bytes);
  }
  if (overflow) {
    reader.refuse(
        fmt::format("{}: the sizes {} overflow 63 bits", named(tensor), fmt::join(tensor.dims, " x ")));
  }
  return static_cast<std::uint64_t>(bytes);
}

TensorEntry read_tensor_entry(Reader& reader, std::uint64_t index) {
  TensorEntry entry;
  const std::string_view name = reader.text(fmt::format("the name of tensor {}", index));
  if (name.empty() || name.size() > kLongestName) {
    reader.refuse(
        fmt::format("tensor {} has a name of {} bytes; allowed: 1 .. {}", index, name.size(), kLongestName));
  }
  entry.tensor.name = name;
  const std::string what = named(entry.tensor);
  entry.tensor.dims = read_dimensions(reader, what);
  entry.tensor.type = read_tensor_type(reader, what);
  entry.offset = reader.number<std::uint64_t>(what);
  entry.bytes = tensor_bytes(reader, entry.tensor);
  return entry;
}

std::vector<TensorEntry> read_tensor_entries(Reader& reader, std::uint64_t count) {
  std::vector<TensorEntry> entries;
  for (std::uint64_t i = 0; i < count; ++i) entries.push_back(read_tensor_entry(reader, i));
  std::unordered_set<std::string_view> names;
  for (const TensorEntry& entry : entries) {
    if (!names.insert(entry.tensor.name).second) {
      reader.refuse(fmt::format("{} stands in the file twice", named(entry.tensor)));
    }
  }
  return entries;
}

std::uint64_t read_alignment(const Reader& reader, const Metadata& metadata) {
  constexpr std::string_view kKey = "general.alignment";
  if (metadata.find(kKey) == nullptr) return kDefaultAlignment;
  const std::int64_t alignment = metadata.integer(kKey, 1, kLargestAlignment);
  if (!std::has_single_bit(static_cast<std::uint64_t>(alignment))) {
    reader.refuse(fmt::format("key '{}' is {}; it must be a power of two", kKey, alignment));
  }
  return static_cast<std::uint64_t>(alignment);
}

void check_place(const Reader& reader, const TensorEntry& entry, std::uint64_t alignment,
                 std::uint64_t data_bytes) {
  if (entry.offset % alignment != 0) {
    reader.refuse(fmt::format("{} lies at offset {}; it must be a multiple of {} (general.alignment)",
                              named(entry.tensor), entry.offset, alignment));
  }
  if (entry.offset > data_bytes || entry.bytes > data_bytes - entry.offset) {
    reader.refuse(fmt::format("{} takes {} bytes at offset {}, but the data has {} bytes (truncated?)",
                              named(entry.tensor), entry.bytes, entry.offset, data_bytes));
  }
}

std::uint64_t padded(std::uint64_t bytes, std::uint64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

/// Refuses overlaps. Returns the first gap in words, if there is one.
std::string check_order(const Reader& reader, const std::vector<TensorEntry>& entries,
                        std::uint64_t alignment) {
  std::vector<const TensorEntry*> order;
  order.reserve(entries.size());
  for (const TensorEntry& entry : entries) order.push_back(&entry);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto* a, const auto* b) { return a->offset < b->offset; });
  std::string gap;
  if (!order.empty() && order[0]->offset != 0) {
    gap = fmt::format("{} lies at offset {} and is the first one; it must lie at 0", named(order[0]->tensor),
                      order[0]->offset);
  }
  for (std::size_t i = 1; i < order.size(); ++i) {
    // No overflow: both lie inside the data.
    const std::uint64_t end = order[i - 1]->offset + order[i - 1]->bytes;
    if (end > order[i]->offset) {
      reader.refuse(fmt::format("{} and {} overlap", named(order[i - 1]->tensor), named(order[i]->tensor)));
    }
    if (gap.empty() && padded(end, alignment) != order[i]->offset) {
      gap = fmt::format("{} ends at byte {}, but {} lies at offset {}; it must lie at {}",
                        named(order[i - 1]->tensor), end, named(order[i]->tensor), order[i]->offset,
                        padded(end, alignment));
    }
  }
  return gap;
}

/// The bytes after the header, from the next multiple of the alignment on; empty where the file ends before that.
std::span<const std::byte> data_part(std::span<const std::byte> bytes, std::uint64_t header,
                                     std::uint64_t alignment) {
  const std::uint64_t begin = padded(header, alignment);
  return begin < bytes.size() ? bytes.subspan(begin) : std::span<const std::byte>();
}

}  // namespace

FilePart read_file_part(std::span<const std::byte> bytes, std::string_view file) {
  Reader reader(bytes, file);
  FilePart part;
  part.version = read_version(reader);
  const auto tensor_count = reader.number<std::uint64_t>("the number of tensors");
  const auto entry_count = reader.number<std::uint64_t>("the number of metadata entries");
  if (tensor_count > reader.remaining() / kSmallestTensorEntry) {
    reader.refuse(fmt::format("says {} tensors, but {} bytes are left", tensor_count, reader.remaining()));
  }
  part.metadata = Metadata(reader, entry_count);
  std::vector<TensorEntry> entries = read_tensor_entries(reader, tensor_count);
  const std::uint64_t alignment = read_alignment(reader, part.metadata);
  const std::span<const std::byte> data = data_part(bytes, reader.offset(), alignment);
  for (const TensorEntry& entry : entries) check_place(reader, entry, alignment, data.size());
  part.gap = check_order(reader, entries, alignment);
  for (TensorEntry& entry : entries) {
    entry.tensor.data = data.subspan(entry.offset, entry.bytes);
    part.tensors.push_back(std::move(entry.tensor));
  }
  return part;
}

}  // namespace headwater::runtime
