#include "cli/support/loaded_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "cli/support/attention_flags.hpp"
#include "cli/support/chosen_engine.hpp"
#include "cli/support/failure.hpp"
#include "cli/support/model_memory.hpp"
#include "cli/support/prompt.hpp"
#include "cli/support/text.hpp"
#include "headwater/error.hpp"
#include "runtime/model/threads.hpp"

namespace headwater::cli {
namespace {

double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

LoadedModel::LoadedModel(const ModelFlags& flags) : flags_(flags) {
  (void)chosen_engine(flags.engine);  // an engine that is not here is said before a large file is read
  const auto start = std::chrono::steady_clock::now();
  file_.emplace(flags.model, flags.rotation);
  warnings_ = file_->tokenizer().warnings();
  texts_ = std::make_shared<const runtime::TokenTexts>(file_->tokenizer());
  check_dense_layers(flags.options, config().layers);
  check_cache_type(flags, config());
  if (pipeline::Pipeline* const others = ranks()) {
    const auto of_ranks = settle_ranks(flags.ranks, flags, file_->file(), config().layers);
    warnings_.insert(warnings_.end(), of_ranks.begin(), of_ranks.end());
    part_ = others->part();
  }
  packed_bytes_ = runtime::Model::packed_bytes(file_->file(), flags.precision, part_);
  if (context() > config().reach) {
    warnings_.push_back(fmt::format("-c {} is more than the {} tokens that the model was {}", context(),
                                    config().reach,
                                    config().reach > config().context ? "stretched to" : "made for"));
  }
  load_seconds_ = since(start);
}

runtime::ChatTemplate LoadedModel::chat_template(const char* flag,
                                                 const std::optional<std::string>& chosen) const {
  std::string text = chosen.value_or("");
  if (chosen && !runtime::ChatTemplate::is_family(text)) {
    text = read_text("--chat-template", text);
    if (text.empty()) {
      throw Failure(fmt::format(
          "--chat-template {}: the file is empty; allowed: chatml, llama3, a file with a template",
          in_quotes(*chosen)));
    }
  }
  try {
    return {file(), tokenizer(), text};
  } catch (const Error& error) {
    throw Failure(fmt::format("{}: {}: {}", flag, in_quotes(flags_.model), error.what()));
  }
}

std::unique_ptr<runtime::Transformer> LoadedModel::open(std::int64_t capacity, bool dense, int slots) {
  // Packed weights need the file's only while they are packed; what is not packed is read from it for every token.
  runtime::ModelConfig own = config();
  if (ranks() != nullptr) own.layers = ranks()->layers();
  check_model_memory(flags_.model, flags_, own, static_cast<double>(weight_bytes()), capacity, slots);
  const auto start = std::chrono::steady_clock::now();
  const int threads = flags_.options.threads > 0 ? flags_.options.threads : runtime::default_threads();
  runtime::TransformerOptions options;
  options.engine = flags_.engine;
  options.attention = flags_.options;
  options.attention.dense = dense;
  options.attention.threads = threads;
  options.cache_type = flags_.cache_type;
  options.capacity = capacity;
  options.slots = slots;
  if (ranks() != nullptr) options.relay = ranks()->open({capacity, options.slots, dense});
  auto transformer =
      std::make_unique<runtime::Transformer>(file_->load({flags_.precision, threads, part_}), options);
  load_seconds_ += since(start);
  return transformer;
}

void LoadedModel::serve() {
  ranks()->serve(
      [this](const pipeline::OpenCall& call) { return open(call.capacity, call.dense, call.slots); });
}

}  // namespace headwater::cli
