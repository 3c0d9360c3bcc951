#include "cli/commands/bench/shapes.hpp"

#include <array>

namespace headwater::bench {

namespace {

constexpr std::array kShapes = {
    ModelShape{"qwen3-0.6b", "qwen3", 28, 1024, 16, 8, 128, 3072, 151936, 40960, 1e6, true},
    ModelShape{"qwen3-1.7b", "qwen3", 28, 2048, 16, 8, 128, 6144, 151936, 40960, 1e6, true},
    ModelShape{"qwen3-4b", "qwen3", 36, 2560, 32, 8, 128, 9728, 151936, 40960, 1e6, true},
    ModelShape{"qwen3-8b", "qwen3", 36, 4096, 32, 8, 128, 12288, 151936, 40960, 1e6, false},
    ModelShape{"qwen3-14b", "qwen3", 40, 5120, 40, 8, 128, 17408, 151936, 40960, 1e6, false},
    ModelShape{"qwen3-30b-a3b", "qwen3moe", 48, 2048, 32, 4, 128, 768, 151936, 40960, 1e6, false, 128, 8},
    ModelShape{"gpt-oss-20b", "gpt-oss", 24, 2880, 64, 8, 64, 2880, 201088, 131072, 1.5e5, false, 32, 4, 128},
    ModelShape{"gemma3-1b", "gemma3", 26, 1152, 4, 1, 256, 6912, 262144, 32768, 1e6, true, 0, 0, 512},
    ModelShape{"qwen2.5-1.5b", "qwen2", 28, 1536, 12, 2, 128, 8960, 151936, 32768, 1e6, true},
    ModelShape{"qwen2.5-7b", "qwen2", 28, 3584, 28, 4, 128, 18944, 152064, 32768, 1e6, false},
    ModelShape{"llama-3.2-1b", "llama", 16, 2048, 32, 8, 64, 8192, 128256, 131072, 5e5, true},
    ModelShape{"llama-3.2-3b", "llama", 28, 3072, 24, 8, 128, 8192, 128256, 131072, 5e5, true},
    ModelShape{"llama-3.1-8b", "llama", 32, 4096, 32, 8, 128, 14336, 128256, 131072, 5e5, false},
    ModelShape{"llama-2-7b", "llama", 32, 4096, 32, 32, 128, 11008, 32000, 4096, 1e4, false},
    ModelShape{"mistral-7b-v0.3", "llama", 32, 4096, 32, 8, 128, 14336, 32768, 32768, 1e6, false},
};

}  // namespace

std::span<const ModelShape> model_shapes() { return kShapes; }

const ModelShape* find_shape(std::string_view name) {
  for (const ModelShape& shape : kShapes) {
    if (shape.name == name) return &shape;
  }
  return nullptr;
}

std::string shape_names() {
  std::string names;
  for (const ModelShape& shape : kShapes) {
    if (!names.empty()) names += ", ";
    names += shape.name;
  }
  return names;
}

}  // namespace headwater::bench
