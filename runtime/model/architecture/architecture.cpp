#include "runtime/model/architecture/architecture.hpp"

#include <array>

namespace headwater::runtime {
namespace {

constexpr std::array kArchitectures = {
    Architecture{"qwen3", "Qwen3, dense", describe_qwen3},
    Architecture{"qwen3moe", "Qwen3 with experts", describe_qwen3moe},
    Architecture{"qwen35", "Qwen3.5, dense", describe_qwen35},
    Architecture{"qwen2", "Qwen2, Qwen2.5", describe_qwen2},
    Architecture{"llama", "Llama 2 and 3, Mistral, Mixtral, SmolLM2", describe_llama},
    Architecture{"gpt-oss", "gpt-oss", describe_gpt_oss},
    Architecture{"gemma3", "Gemma 3", describe_gemma3},
    Architecture{"gemma2", "Gemma 2", describe_gemma2},
    Architecture{"smollm3", "SmolLM3", describe_smollm3},
    Architecture{"granite", "Granite 3, dense", describe_granite},
    Architecture{"granitemoe", "Granite 3 with experts", describe_granitemoe},
    Architecture{"glm4", "GLM-4 of 2025", describe_glm4},
    Architecture{"phi3", "Phi-3, Phi-4", describe_phi3},
    Architecture{"olmo2", "OLMo 2", describe_olmo2},
    Architecture{"cohere2", "Command R7B", describe_cohere2},
    Architecture{"mistral3", "Ministral 3, Mistral Small 3", describe_mistral3},
    Architecture{"qwen2moe", "Qwen1.5 and Qwen2 with experts", describe_qwen2moe},
    Architecture{"deepseek2", "DeepSeek-V2-Lite", describe_deepseek2},
};

}  // namespace

std::span<const Architecture> architectures() { return kArchitectures; }

}  // namespace headwater::runtime
