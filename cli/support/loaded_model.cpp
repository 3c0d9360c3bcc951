#include "cli/support/loaded_model.hpp"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <chrono>

#include "cli/support/attention_flags.hpp"
#include "cli/support/chosen_engine.hpp"
#include "cli/support/failure.hpp"
#include "cli/support/model_memory.hpp"
#include "cli/support/text.hpp"

namespace headwater::cli {
namespace {

double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

LoadedModel::LoadedModel(const ModelFlags& flags) : flags_(flags) {
  (void)chosen_engine(flags.engine);  // an engine that is not here is said before a large file is read
  const auto start = std::chrono::steady_clock::now();
  file_ = std::make_shared<const runtime::GgufFile>(runtime::GgufFile::open(flags.model));
  config_ = runtime::read_model_config(*file_);
  check_dense_layers(flags.options, config_.layers);
  tokenizer_ = runtime::Tokenizer::from_gguf(*file_);
  if (tokenizer_->size() > config_.vocabulary) {
    throw Failure(
        fmt::format("{}: tensor 'token_embd.weight' has rows for {} tokens, but key "
                    "'tokenizer.ggml.tokens' has {}; there must be a row for each",
                    in_quotes(flags.model), config_.vocabulary, tokenizer_->size()));
  }
  packed_bytes_ = runtime::Model::packed_bytes(*file_, flags.precision);
  if (context() > config_.context) {
    warnings_.push_back(fmt::format("-c {} is more than the {} tokens that the model was made for", context(),
                                    config_.context));
  }
  load_seconds_ = since(start);
}

std::unique_ptr<runtime::Transformer> LoadedModel::open(std::int64_t capacity, bool dense) {
  // Packed weights need the file's only while they are packed; what is not packed is read from it for every token.
  check_model_memory(flags_.model, flags_, config_,
                     std::max(static_cast<double>(packed_bytes_), static_cast<double>(file_->file_bytes())),
                     capacity);
  const auto start = std::chrono::steady_clock::now();
  const int threads = flags_.options.threads > 0 ? flags_.options.threads : omp_get_max_threads();
  if (!model_) model_ = runtime::Model::load(file_, {flags_.precision, threads});
  runtime::TransformerOptions options;
  options.engine = flags_.engine;
  options.attention = flags_.options;
  options.attention.dense = dense;
  options.attention.threads = threads;
  options.cache_type = flags_.cache_type;
  options.capacity = capacity;
  auto transformer = std::make_unique<runtime::Transformer>(model_, options);
  load_seconds_ += since(start);
  return transformer;
}

}  // namespace headwater::cli
