#include "cli/support/safetensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "cli/support/failure.hpp"
#include "cli/support/safetensors_json.hpp"
#include "cli/support/text.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cli {
namespace {

constexpr std::array kTypes = {
    TensorTypeInfo{TensorType::boolean, "BOOL", 8},
    TensorTypeInfo{TensorType::f4, "F4", 4},
    TensorTypeInfo{TensorType::f6_e2m3, "F6_E2M3", 6},
    TensorTypeInfo{TensorType::f6_e3m2, "F6_E3M2", 6},
    TensorTypeInfo{TensorType::u8, "U8", 8},
    TensorTypeInfo{TensorType::i8, "I8", 8},
    TensorTypeInfo{TensorType::f8_e5m2, "F8_E5M2", 8},
    TensorTypeInfo{TensorType::f8_e4m3, "F8_E4M3", 8},
    TensorTypeInfo{TensorType::f8_e8m0, "F8_E8M0", 8},
    TensorTypeInfo{TensorType::f8_e5m2fnuz, "F8_E5M2FNUZ", 8},
    TensorTypeInfo{TensorType::f8_e4m3fnuz, "F8_E4M3FNUZ", 8},
    TensorTypeInfo{TensorType::i16, "I16", 16},
    TensorTypeInfo{TensorType::u16, "U16", 16},
    TensorTypeInfo{TensorType::f16, "F16", 16},
    TensorTypeInfo{TensorType::bf16, "BF16", 16},
    TensorTypeInfo{TensorType::i32, "I32", 32},
    TensorTypeInfo{TensorType::u32, "U32", 32},
    TensorTypeInfo{TensorType::f32, "F32", 32},
    TensorTypeInfo{TensorType::i64, "I64", 64},
    TensorTypeInfo{TensorType::u64, "U64", 64},
    TensorTypeInfo{TensorType::f64, "F64", 64},
    TensorTypeInfo{TensorType::c64, "C64", 64},
};

constexpr std::uint64_t kLengthBytes = 8;  ///< the length of the header, in front of it

std::uint64_t read_header_length(std::span<const std::byte> file) {
  if (file.size() < kLengthBytes) {
    throw Failure(
        fmt::format("is {} bytes long; a safetensors file has at least {}", file.size(), kLengthBytes));
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length |= std::to_integer<std::uint64_t>(file[i]) << (8 * i);
  }
  const std::uint64_t rest = file.size() - kLengthBytes;
  if (length > rest) {
    throw Failure(fmt::format(
        "says that its header takes {} bytes, but {} bytes follow (truncated, or not a safetensors file)",
        length, rest));
  }
  if (length > kMaxHeaderBytes) {
    throw Failure(fmt::format("has a header of {} bytes; allowed are {}", length, kMaxHeaderBytes));
  }
  return length;
}

/// Bytes of a tensor; Failure where its bits overflow or are no whole bytes.
std::uint64_t byte_size(std::string_view name, const TensorInfo& tensor) {
  constexpr std::uint64_t kBitsOfByte = 8;
  std::uint64_t bits = tensor_type_info(tensor.type).bits;
  // A zero anywhere makes the tensor empty, however large the other sizes are.
  if (std::find(tensor.shape.begin(), tensor.shape.end(), 0U) != tensor.shape.end()) return 0;
  for (const std::uint64_t size : tensor.shape) {
    if (__builtin_mul_overflow(bits, size, &bits)) {
      throw Failure(fmt::format("tensor {}: the sizes of shape {} overflow 64 bits", in_quotes(name),
                                shape_text(tensor.shape)));
    }
  }
  if (bits % kBitsOfByte != 0) {
    throw Failure(fmt::format("tensor {}: {} {} takes {} bits; allowed are whole bytes", in_quotes(name),
                              tensor_type_info(tensor.type).name, shape_text(tensor.shape), bits));
  }
  return bits / kBitsOfByte;
}

void check_tensor(std::string_view name, const TensorInfo& tensor, std::uint64_t data_bytes) {
  if (tensor.begin > tensor.end || tensor.end > data_bytes) {
    throw Failure(fmt::format("tensor {}: data_offsets [{}, {}] do not lie in order within the {} of data",
                              in_quotes(name), tensor.begin, tensor.end, count_text(data_bytes, "byte")));
  }
  const std::uint64_t bytes = byte_size(name, tensor);
  if (bytes != tensor.end - tensor.begin && !HEADWATER_SABOTAGE("cli.safetensors.size_unchecked")) {
    throw Failure(fmt::format("tensor {}: {} {} takes {}, but data_offsets [{}, {}] hold {}", in_quotes(name),
                              tensor_type_info(tensor.type).name, shape_text(tensor.shape),
                              count_text(bytes, "byte"), tensor.begin, tensor.end,
                              tensor.end - tensor.begin));
  }
}

/// The tensors, in the order of their offsets, cover [0, data_bytes) without hole or overlap.
void check_coverage(const SafetensorsHeader& header, std::uint64_t data_bytes) {
  std::vector<decltype(header.tensors)::const_iterator> order;
  order.reserve(header.tensors.size());
  for (auto it = header.tensors.begin(); it != header.tensors.end(); ++it) order.push_back(it);
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  std::uint64_t covered = 0;
  for (const auto& it : order) {
    const auto& [name, tensor] = *it;
    if (tensor.begin < covered && !HEADWATER_SABOTAGE("cli.safetensors.overlap")) {
      throw Failure(fmt::format("tensor {}: data_offsets [{}, {}] overlap another tensor, which ends at {}",
                                in_quotes(name), tensor.begin, tensor.end, covered));
    }
    if (tensor.begin > covered && !HEADWATER_SABOTAGE("cli.safetensors.hole")) {
      throw Failure(
          fmt::format("tensor {}: data_offsets [{}, {}] leave a hole of {} before it; none is allowed",
                      in_quotes(name), tensor.begin, tensor.end, count_text(tensor.begin - covered, "byte")));
    }
    covered = tensor.end;
  }
  if (covered != data_bytes && !HEADWATER_SABOTAGE("cli.safetensors.truncated")) {
    throw Failure(fmt::format("has {} of data, but its tensors take {}; they must be equal",
                              count_text(data_bytes, "byte"), covered));
  }
}

}  // namespace

std::span<const TensorTypeInfo> tensor_types() { return kTypes; }

const TensorTypeInfo& tensor_type_info(TensorType type) { return kTypes[static_cast<std::size_t>(type)]; }

std::string shape_text(std::span<const std::uint64_t> shape) {
  constexpr std::size_t kShown = 8;
  const auto head = shape.first(std::min(shape.size(), kShown));
  return fmt::format("[{}{}]", fmt::join(head, ", "), shape.size() > kShown ? ", ..." : "");
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> file) {
  const std::uint64_t length = read_header_length(file);
  const auto text = file.subspan(kLengthBytes, length);
  SafetensorsHeader header =
      parse_safetensors_json({reinterpret_cast<const char*>(text.data()), text.size()});
  const std::uint64_t data_start = kLengthBytes + length;
  const std::uint64_t data_bytes = file.size() - data_start;
  for (const auto& [name, tensor] : header.tensors) check_tensor(name, tensor, data_bytes);
  check_coverage(header, data_bytes);
  for (auto& [name, tensor] : header.tensors) {
    tensor.begin += data_start;
    tensor.end += data_start;
  }
  return header;
}

}  // namespace headwater::cli
