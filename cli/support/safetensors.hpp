#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headwater::cli {

/// Element types of the safetensors format.
enum class TensorType : std::uint8_t {
  boolean,
  f4,
  f6_e2m3,
  f6_e3m2,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e5m2fnuz,
  f8_e4m3fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  i64,
  u64,
  f64,
  c64,
};

struct TensorTypeInfo {
  TensorType type;
  std::string_view name;  ///< as a header spells it
  std::uint64_t bits;     ///< of one element; a tensor has whole bytes
};

/// All of them, in the order of the enumeration.
[[nodiscard]] std::span<const TensorTypeInfo> tensor_types();
[[nodiscard]] const TensorTypeInfo& tensor_type_info(TensorType type);

/// One tensor of a file. The elements lie in bytes [begin, end) of the file, row-major, little-endian, and may
/// stand at any address: copy them, never cast.
struct TensorInfo {
  TensorType type = TensorType::u8;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::map<std::string, TensorInfo, std::less<>> tensors;
  std::map<std::string, std::string, std::less<>> metadata;
};

/// The format's own limit of the header: 100 MB.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
/// Most dimensions of a tensor (the format names no limit; no library makes more).
inline constexpr std::size_t kMaxDimensions = 64;

/// Reads the header of a whole safetensors file and checks all of it: lengths, JSON, names, types, that each
/// tensor's shape takes exactly the bytes of its offsets, and that the tensors cover the data without hole or overlap
/// (https://huggingface.co/docs/safetensors, "Format"). Allocates in proportion to the header. Never reads tensor
/// data. Failure naming the tensor, the value and what is allowed otherwise.
[[nodiscard]] SafetensorsHeader parse_safetensors(std::span<const std::byte> file);

/// "[4096, 4, 64]".
[[nodiscard]] std::string shape_text(std::span<const std::uint64_t> shape);

}  // namespace headwater::cli
