#include "runtime/gguf/tensor_type.hpp"

#include <array>
#include <cassert>

namespace headwater::runtime {
namespace {

// The formats are ggml's (ggml-common.h): a super-block of the K types has 256 elements.
constexpr std::array kTypes = {
    TensorTypeInfo{TensorType::f32, "F32", 0, 1, 4},
    TensorTypeInfo{TensorType::f16, "F16", 1, 1, 2},
    TensorTypeInfo{TensorType::bf16, "BF16", 30, 1, 2},
    TensorTypeInfo{TensorType::q8_0, "Q8_0", 8, 32, 34},
    TensorTypeInfo{TensorType::q4_0, "Q4_0", 2, 32, 18},
    TensorTypeInfo{TensorType::q4_1, "Q4_1", 3, 32, 20},
    TensorTypeInfo{TensorType::q5_0, "Q5_0", 6, 32, 22},
    TensorTypeInfo{TensorType::q5_1, "Q5_1", 7, 32, 24},
    TensorTypeInfo{TensorType::q4_k, "Q4_K", 12, 256, 144},
    TensorTypeInfo{TensorType::q5_k, "Q5_K", 13, 256, 176},
    TensorTypeInfo{TensorType::q6_k, "Q6_K", 14, 256, 210},
    TensorTypeInfo{TensorType::iq4_nl, "IQ4_NL", 20, 32, 18},
    TensorTypeInfo{TensorType::mxfp4, "MXFP4", 39, 32, 17},
    TensorTypeInfo{TensorType::q2_k, "Q2_K", 10, 256, 84},
    TensorTypeInfo{TensorType::q3_k, "Q3_K", 11, 256, 110},
    TensorTypeInfo{TensorType::iq4_xs, "IQ4_XS", 23, 256, 136},
};

/// ggml's type numbers; empty where a number was withdrawn.
constexpr std::array<std::string_view, 40> kGgmlNames = {
    "F32",    "F16",   "Q4_0",  "Q4_1",   "",      "",      "Q5_0",    "Q5_1",   "Q8_0",    "Q8_1",
    "Q2_K",   "Q3_K",  "Q4_K",  "Q5_K",   "Q6_K",  "Q8_K",  "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S",
    "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8",    "I16",   "I32",     "I64",    "F64",     "IQ1_M",
    "BF16",   "",      "",      "",       "TQ1_0", "TQ2_0", "",        "",       "",        "MXFP4"};

}  // namespace

std::span<const TensorTypeInfo> tensor_types() { return kTypes; }

const TensorTypeInfo& tensor_type_info(TensorType type) { return kTypes[static_cast<std::size_t>(type)]; }

std::optional<TensorType> tensor_type_of(std::uint32_t ggml_id) {
  for (const TensorTypeInfo& info : kTypes) {
    if (info.ggml_id == ggml_id) return info.type;
  }
  return std::nullopt;
}

std::string_view ggml_type_name(std::uint32_t ggml_id) {
  return ggml_id < kGgmlNames.size() ? kGgmlNames[ggml_id] : std::string_view();
}

std::string_view tensor_type_list() {
  return "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, IQ4_NL, MXFP4, Q2_K, Q3_K, IQ4_XS";
}

std::int64_t row_bytes(TensorType type, std::int64_t n) {
  const TensorTypeInfo& info = tensor_type_info(type);
  assert(n >= 0 && n % info.block_elements == 0);
  return n / info.block_elements * info.block_bytes;
}

}  // namespace headwater::runtime
