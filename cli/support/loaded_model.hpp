#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/support/model_flags.hpp"
#include "runtime/generate/model_file.hpp"
#include "runtime/grammar/token_filter.hpp"
#include "runtime/model/transformer.hpp"
#include "runtime/tokenizer/chat.hpp"

namespace headwater::cli {

/// A model file for a command: first its metadata and tokenizer, which is quick; then, when it is known how many tokens
/// are needed, its weights.
class LoadedModel {
 public:
  /// Opens the file, checks its configuration, and reads the tokenizer.
  explicit LoadedModel(const ModelFlags& flags);

  [[nodiscard]] const ModelFlags& flags() const { return flags_; }
  [[nodiscard]] const runtime::GgufFile& file() const { return file_->file(); }
  [[nodiscard]] const runtime::Tokenizer& tokenizer() const { return file_->tokenizer(); }
  /// Of the tokenizer, for grammars.
  [[nodiscard]] const std::shared_ptr<const runtime::TokenTexts>& texts() const { return texts_; }
  [[nodiscard]] const runtime::ModelConfig& config() const { return file_->config(); }
  /// -c, or the file's context length.
  [[nodiscard]] std::int64_t context() const { return flags_.context.value_or(config().context); }
  [[nodiscard]] const std::vector<std::string>& warnings() const { return warnings_; }

  /// The file's own, or what --chat-template says: a family's name, or a file with a template. Failure, which `flag` begins,
  /// where there is none.
  [[nodiscard]] runtime::ChatTemplate chat_template(const char* flag,
                                                    const std::optional<std::string>& chosen) const;
  /// A transformer for `capacity` tokens in each slot. The first call packs the weights. Failure, with the numbers, where
  /// weights, cache and workspace do not fit into the machine's memory, before anything is taken.
  [[nodiscard]] std::unique_ptr<runtime::Transformer> open(std::int64_t capacity, bool dense, int slots = 1);
  /// On a rank behind the first: works for that until it ends the job.
  [[noreturn]] void serve();

  /// Seconds spent so far on opening and packing.
  [[nodiscard]] double load_seconds() const { return load_seconds_; }
  /// Bytes of weights in memory, of this rank's layers where there are several: packed ones, or the file's where they are
  /// more.
  [[nodiscard]] std::uint64_t weight_bytes() const {
    return std::max(packed_bytes_, runtime::Model::file_bytes(file_->file(), part_));
  }

 private:
  ModelFlags flags_;
  std::optional<runtime::ModelFile> file_;
  std::shared_ptr<const runtime::TokenTexts> texts_;
  runtime::ModelPart part_;
  std::vector<std::string> warnings_;
  double load_seconds_ = 0;
  std::uint64_t packed_bytes_ = 0;
};

}  // namespace headwater::cli
