#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/support/model_flags.hpp"
#include "runtime/model/transformer.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace headwater::cli {

/// A model file for a command: first its metadata and tokenizer, which is quick; then, when it is known how many tokens
/// are needed, its weights.
class LoadedModel {
 public:
  /// Opens the file, checks its configuration, and reads the tokenizer.
  explicit LoadedModel(const ModelFlags& flags);

  [[nodiscard]] const ModelFlags& flags() const { return flags_; }
  [[nodiscard]] const runtime::Tokenizer& tokenizer() const { return *tokenizer_; }
  [[nodiscard]] const runtime::ModelConfig& config() const { return config_; }
  /// -c, or the file's context length.
  [[nodiscard]] std::int64_t context() const { return flags_.context.value_or(config_.context); }
  [[nodiscard]] const std::vector<std::string>& warnings() const { return warnings_; }

  /// A transformer for `capacity` tokens. The first call packs the weights. Failure, with the numbers, where weights,
  /// cache and workspace do not fit into the machine's memory, before anything is taken.
  [[nodiscard]] std::unique_ptr<runtime::Transformer> open(std::int64_t capacity, bool dense);

  /// Seconds spent so far on opening and packing.
  [[nodiscard]] double load_seconds() const { return load_seconds_; }
  /// Bytes of weights in memory: packed ones, or the file's where they are more.
  [[nodiscard]] std::uint64_t weight_bytes() const { return std::max(packed_bytes_, file_->file_bytes()); }

 private:
  ModelFlags flags_;
  std::shared_ptr<const runtime::GgufFile> file_;
  runtime::ModelConfig config_;
  std::unique_ptr<runtime::Tokenizer> tokenizer_;
  std::shared_ptr<const runtime::Model> model_;
  std::vector<std::string> warnings_;
  double load_seconds_ = 0;
  std::uint64_t packed_bytes_ = 0;
};

}  // namespace headwater::cli
