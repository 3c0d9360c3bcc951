#include "cli/model/loaded_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "cli/failure.hpp"
#include "cli/machine.hpp"
#include "cli/text.hpp"

namespace headwater::cli {
namespace {

double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

LoadedModel::LoadedModel(const ModelFlags& flags) : flags_(flags) {
  (void)engine(flags.engine);  // an engine that is not here is said before a large file is read
  const auto start = std::chrono::steady_clock::now();
  file_ = std::make_shared<const runtime::GgufFile>(runtime::GgufFile::open(flags.model));
  config_ = runtime::read_model_config(*file_);
  tokenizer_ = runtime::Tokenizer::from_gguf(*file_);
  if (tokenizer_->size() > config_.vocabulary) {
    throw Failure(fmt::format("{}: the tokenizer has {} tokens, but the embedding has rows for {}",
                              in_quotes(flags.model), tokenizer_->size(), config_.vocabulary));
  }
  packed_bytes_ = runtime::Model::packed_bytes(*file_, flags.precision);
  if (context() > config_.context) {
    warnings_.push_back(fmt::format("-c {} is more than the {} tokens that the model was made for", context(),
                                    config_.context));
  }
  load_seconds_ = since(start);
}

/// At least what a run takes: in doubles, so that no product of hostile sizes can overflow.
void LoadedModel::check_memory(std::int64_t capacity) const {
  const auto number = [](std::int64_t value) { return static_cast<double>(value); };
  const double row = number(config_.d_head + config_.d_value) * number(config_.heads_kv);
  const double scores = 2.0 * number(config_.heads);
  const double cache = number(config_.layers) * number(capacity) *
                       (row * static_cast<double>(dtype_size(flags_.cache_type)) + scores);
  const double batch = number(std::min(std::max(flags_.options.batch, flags_.options.chunk), capacity));
  const double widths = number(config_.width) * 2 +
                        number(config_.heads) * number(config_.d_head + config_.d_value) + row +
                        number(config_.feed_forward);
  const double workspace = batch * widths * sizeof(float);
  // Packed weights need the file's only while they are packed; quantised ones are read from it for every token.
  const double weights =
      std::max(static_cast<double>(packed_bytes_), static_cast<double>(file_->file_bytes()));
  const double total = weights + cache + workspace;
  const std::uint64_t limit = memory_limit();
  if (total <= static_cast<double>(limit)) return;
  const auto text = [](double bytes) {
    return bytes_text(static_cast<std::uint64_t>(std::min(bytes, 9e18)));
  };
  throw Failure(
      fmt::format("{}: {} of weights, {} of cache for {} tokens and {} of workspace make {}, but the machine "
                  "has {}; use a smaller model, -c or -b",
                  in_quotes(flags_.model), text(weights), text(cache), capacity, text(workspace), text(total),
                  bytes_text(limit)));
}

std::unique_ptr<runtime::Transformer> LoadedModel::open(std::int64_t capacity, bool dense) {
  check_memory(capacity);
  const auto start = std::chrono::steady_clock::now();
  const int threads = flags_.options.threads > 0 ? flags_.options.threads : usable_cores();
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
