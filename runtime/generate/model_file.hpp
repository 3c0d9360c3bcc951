#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "runtime/gguf/gguf.hpp"
#include "runtime/model/model.hpp"
#include "runtime/model/model_config.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace headwater::runtime {

/// A model file that is open: metadata, configuration and tokenizer at once, which is quick; the weights where they are
/// asked for. May be shared by threads.
class ModelFile {
 public:
  /// Errors: those of open_model_file(), read_model_config() and Tokenizer::from_gguf(); invalid_argument where the
  /// vocabulary has tokens without an embedding.
  /// `replacements`: as open_model_file() takes them.
  explicit ModelFile(const std::string& path, std::span<const Replacement> replacements = {});

  [[nodiscard]] const GgufFile& file() const { return *file_; }
  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] const Tokenizer& tokenizer() const { return *tokenizer_; }

  /// The weights, packed by the first call; later ones share them, whatever their options. Errors: those of Model::load().
  [[nodiscard]] std::shared_ptr<const Model> load(const ModelOptions& options);

 private:
  std::shared_ptr<const GgufFile> file_;
  ModelConfig config_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::mutex loading_;
  std::shared_ptr<const Model> model_;
};

}  // namespace headwater::runtime
