#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/model/transformer.hpp"

namespace headwater::runtime::testing {

/// The bundled model, packed in this precision; each is loaded once.
std::shared_ptr<const Model> bundled(Precision precision);
std::shared_ptr<const GgufFile> bundled_file();

/// models/reference-logits.safetensors: PyTorch in F32 on the same weights.
struct ReferenceLogits {
  std::vector<std::int32_t> ids;   ///< 512 tokens of a held-out text
  std::vector<std::int32_t> top1;  ///< the best token after each
  std::vector<float> logits;       ///< [64][vocabulary], of the last 64
};
const ReferenceLogits& reference_logits();

/// n token ids of that text, repeated as often as needed.
std::vector<std::int32_t> some_ids(std::int64_t n);

/// Options for a run over at most `capacity` tokens on two threads, by an engine whose arithmetic is F32.
TransformerOptions options(std::int64_t capacity, DType cache = DType::f32);

}  // namespace headwater::runtime::testing
