#include "runtime/generate/model_file.hpp"

#include <fmt/format.h>

namespace headwater::runtime {

ModelFile::ModelFile(const std::string& path, std::span<const Replacement> replacements)
    : file_(std::make_shared<const GgufFile>(open_model_file(path, replacements))),
      config_(read_model_config(*file_)),
      tokenizer_(Tokenizer::from_gguf(*file_)) {
  if (tokenizer_->size() <= config_.vocabulary) return;
  file_->refuse(
      fmt::format("tensor 'token_embd.weight' has rows for {} tokens, but key 'tokenizer.ggml.tokens' has "
                  "{}; there must be a row for each",
                  config_.vocabulary, tokenizer_->size()));
}

std::shared_ptr<const Model> ModelFile::load(const ModelOptions& options) {
  const std::lock_guard lock(loading_);
  if (!model_) model_ = Model::load(file_, options);
  return model_;
}

}  // namespace headwater::runtime
