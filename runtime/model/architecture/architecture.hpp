#pragma once

#include <span>
#include <string_view>

#include "runtime/model/architecture/keys.hpp"
#include "runtime/model/model_config.hpp"

/// The kinds of models that are known: a file of this folder each, which says what its models have beside the sizes that
/// every file names. To add one: write its file, and its line in architecture.cpp and CMakeLists.txt.
namespace headwater::runtime {

struct Architecture {
  std::string_view name;    ///< general.architecture
  std::string_view models;  ///< of which models, for people
  /// Fills in what the architecture has of its own. The sizes are read; `rotations` holds the one that the usual keys say,
  /// and layer_specs one layer with it for each. Errors: as of read_model_config().
  void (*describe)(const Keys& keys, ModelConfig& config);
};

/// In the order in which messages and documents name them.
[[nodiscard]] std::span<const Architecture> architectures();

void describe_cohere2(const Keys& keys, ModelConfig& config);
void describe_deepseek2(const Keys& keys, ModelConfig& config);
void describe_gemma2(const Keys& keys, ModelConfig& config);
void describe_gemma3(const Keys& keys, ModelConfig& config);
void describe_glm4(const Keys& keys, ModelConfig& config);
void describe_gpt_oss(const Keys& keys, ModelConfig& config);
void describe_granite(const Keys& keys, ModelConfig& config);
void describe_granitemoe(const Keys& keys, ModelConfig& config);
void describe_llama(const Keys& keys, ModelConfig& config);
void describe_mistral3(const Keys& keys, ModelConfig& config);
void describe_olmo2(const Keys& keys, ModelConfig& config);
void describe_phi3(const Keys& keys, ModelConfig& config);
void describe_qwen2(const Keys& keys, ModelConfig& config);
void describe_qwen2moe(const Keys& keys, ModelConfig& config);
void describe_qwen3(const Keys& keys, ModelConfig& config);
void describe_qwen35(const Keys& keys, ModelConfig& config);
void describe_qwen3moe(const Keys& keys, ModelConfig& config);
void describe_smollm3(const Keys& keys, ModelConfig& config);

}  // namespace headwater::runtime
