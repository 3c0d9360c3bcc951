#include "cli/commands/attend/input.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <string_view>

#include "cli/support/failure.hpp"
#include "cli/support/numbers.hpp"
#include "cli/support/text.hpp"

namespace headwater::cli {
namespace {

constexpr std::int64_t kMaxExtent = 65536;  ///< heads and widths, see Shape
constexpr std::size_t kDimensions = 3;

const TensorInfo& find(const SafetensorsHeader& header, std::string_view name) {
  const auto it = header.tensors.find(name);
  if (it != header.tensors.end()) return it->second;
  throw Failure(
      fmt::format("has no tensor '{}'; attend needs q [n,Hq,d], k [n,Hkv,d] and v [n,Hkv,dv]", name));
}

DType attention_type(std::string_view name, TensorType type) {
  switch (type) {
    case TensorType::f32: return DType::f32;
    case TensorType::f16: return DType::f16;
    case TensorType::bf16: return DType::bf16;
    default: break;
  }
  throw Failure(fmt::format("tensor '{}': dtype {} is not allowed; use F32, F16 or BF16", name,
                            tensor_type_info(type).name));
}

std::int64_t extent(std::string_view name, std::string_view what, const TensorInfo& tensor,
                    std::size_t dimension, std::int64_t high) {
  const std::uint64_t size = tensor.shape[dimension];
  if (size < 1 || size > static_cast<std::uint64_t>(high)) {
    throw Failure(fmt::format("tensor '{}': shape {} has {} = {}; allowed are 1 to {}", name,
                              shape_text(tensor.shape), what, size, high));
  }
  return static_cast<std::int64_t>(size);
}

/// The names of the dimensions are those of the tensor's own shape: "n", "Hkv", "dv".
InputTensor read_rows(const runtime::MappedFile& file, const SafetensorsHeader& header, std::string_view name,
                      std::string_view heads, std::string_view width) {
  const TensorInfo& tensor = find(header, name);
  if (tensor.shape.size() != kDimensions) {
    throw Failure(fmt::format("tensor '{}': shape {} has {} dimensions; it must be [n, {}, {}]", name,
                              shape_text(tensor.shape), tensor.shape.size(), heads, width));
  }
  InputTensor rows;
  rows.type = attention_type(name, tensor.type);
  rows.n = extent(name, "n", tensor, 0, kMaxCount);
  rows.heads = extent(name, heads, tensor, 1, kMaxExtent);
  rows.width = extent(name, width, tensor, 2, kMaxExtent);
  rows.data = file.bytes().data() + tensor.begin;
  rows.file_offset = tensor.begin;
  return rows;
}

void require_equal(std::string_view what, std::string_view a, std::int64_t a_size, std::string_view b,
                   std::int64_t b_size) {
  if (a_size == b_size) return;
  throw Failure(
      fmt::format("tensors '{}' and '{}': {} is {} and {}; it must be the same", a, b, what, a_size, b_size));
}

void check_agreement(const AttendInput& input) {
  const InputTensor& q = input.q;
  const InputTensor& k = input.k;
  const InputTensor& v = input.v;
  if (q.n != k.n || k.n != v.n) {
    throw Failure(
        fmt::format("tensors 'q', 'k' and 'v': the number of tokens n is {}, {} and {}; it must be the same",
                    q.n, k.n, v.n));
  }
  require_equal("the number of key/value heads Hkv", "k", k.heads, "v", v.heads);
  require_equal("the row width d", "q", q.width, "k", k.width);
  if (k.type != v.type) {
    throw Failure(fmt::format("tensors 'k' and 'v': dtype is {} and {}; it must be the same",
                              dtype_name(k.type), dtype_name(v.type)));
  }
  if (q.heads % k.heads != 0) {
    throw Failure(
        fmt::format("tensors 'q' and 'k': Hq = {} query heads is not a multiple of Hkv = {} key/value heads",
                    q.heads, k.heads));
  }
}

/// An optional tensor of one float per query head.
std::vector<float> read_per_head(const runtime::MappedFile& file, const SafetensorsHeader& header,
                                 std::string_view name, std::int64_t heads, bool minus_infinity) {
  const auto it = header.tensors.find(name);
  if (it == header.tensors.end()) return {};
  const TensorInfo& tensor = it->second;
  if (tensor.type != TensorType::f32) {
    throw Failure(fmt::format("tensor '{}': dtype {} is not allowed; use F32", name,
                              tensor_type_info(tensor.type).name));
  }
  if (tensor.shape.size() != 1 || tensor.shape[0] != static_cast<std::uint64_t>(heads)) {
    throw Failure(fmt::format("tensor '{}': shape is {}; it must be [Hq] = [{}]", name,
                              shape_text(tensor.shape), heads));
  }
  std::vector<float> values(static_cast<std::size_t>(heads));
  std::memcpy(values.data(), file.bytes().data() + tensor.begin, values.size() * sizeof(float));
  for (std::size_t h = 0; h < values.size(); ++h) {
    const bool none = minus_infinity && std::isinf(values[h]) && values[h] < 0;
    if (std::isfinite(values[h]) || none) continue;
    throw Failure(fmt::format("tensor '{}': the value of head {} is {}; allowed are finite numbers{}", name,
                              h, values[h], minus_infinity ? " and -inf" : ""));
  }
  return values;
}

std::vector<std::string> unused_warning(const SafetensorsHeader& header) {
  constexpr std::size_t kShown = 4;
  std::size_t count = 0;
  std::string names;
  for (const auto& [name, tensor] : header.tensors) {
    if (name == "q" || name == "k" || name == "v" || name == "sinks" || name == "alibi") continue;
    if (count < kShown) names += (count == 0 ? "" : ", ") + in_quotes(name);
    ++count;
  }
  if (count == 0) return {};
  return {fmt::format("{} {} of the input not used: {}{}", count, count == 1 ? "tensor" : "tensors", names,
                      count > kShown ? ", ..." : "")};
}

AttendInput read_checked(const runtime::MappedFile& file) {
  const SafetensorsHeader header = parse_safetensors(file.bytes());
  AttendInput input;
  input.q = read_rows(file, header, "q", "Hq", "d");
  input.k = read_rows(file, header, "k", "Hkv", "d");
  input.v = read_rows(file, header, "v", "Hkv", "dv");
  check_agreement(input);
  input.sinks = read_per_head(file, header, "sinks", input.q.heads, true);
  input.alibi = read_per_head(file, header, "alibi", input.q.heads, false);
  input.warnings = unused_warning(header);
  return input;
}

/// Index of the first element in [0, n) whose exponent bits are all set, and how many there are.
template <typename Bits>
std::uint64_t count_non_finite(const std::byte* data, std::uint64_t n, Bits exponent, std::uint64_t& first) {
  const auto bits = [&](std::uint64_t i) {
    Bits value;
    std::memcpy(&value, data + i * sizeof value, sizeof value);  // the file aligns nothing
    return value;
  };
  std::uint64_t count = 0;
  for (std::uint64_t i = 0; i < n; ++i) count += (bits(i) & exponent) == exponent ? 1 : 0;
  if (count == 0) return 0;
  first = 0;
  while ((bits(first) & exponent) != exponent) ++first;
  return count;
}

}  // namespace

AttendInput read_attend_input(const runtime::MappedFile& file) {
  try {
    return read_checked(file);
  } catch (const Failure& failure) {
    throw Failure(failure.code(), fmt::format("{}: {}", in_quotes(file.path()), failure.what()));
  }
}

void NonFinite::scan(std::int64_t begin, std::int64_t end) {
  constexpr std::uint32_t kF32Exponent = 0x7F800000;
  constexpr std::uint16_t kF16Exponent = 0x7C00;
  constexpr std::uint16_t kBF16Exponent = 0x7F80;
  const std::byte* const data = tensor_.data + static_cast<std::uint64_t>(begin) * tensor_.row_bytes();
  const auto row = static_cast<std::uint64_t>(tensor_.heads * tensor_.width);
  const std::uint64_t n = static_cast<std::uint64_t>(end - begin) * row;
  std::uint64_t first = 0;
  const std::uint64_t found =
      tensor_.type == DType::f32
          ? count_non_finite<std::uint32_t>(data, n, kF32Exponent, first)
          : count_non_finite<std::uint16_t>(data, n,
                                            tensor_.type == DType::f16 ? kF16Exponent : kBF16Exponent, first);
  if (found > 0 && count_ == 0) first_ = static_cast<std::uint64_t>(begin) * row + first;
  count_ += found;
}

std::string NonFinite::warning() const {
  if (count_ == 0) return {};
  const auto width = static_cast<std::uint64_t>(tensor_.width);
  const auto heads = static_cast<std::uint64_t>(tensor_.heads);
  return fmt::format(
      "{}: {} {} NaN or infinite, first at token {}, head {}, element {}; computed all the same", name_,
      count_, count_ == 1 ? "value is" : "values are", first_ / (width * heads), first_ / width % heads,
      first_ % width);
}

}  // namespace headwater::cli
