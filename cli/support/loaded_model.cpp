#include "cli/support/loaded_model.hpp"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <chrono>

#include "cli/support/attention_flags.hpp"
#include "cli/support/chosen_engine.hpp"
#include "cli/support/failure.hpp"
#include "cli/support/model_memory.hpp"

namespace headwater::cli {
namespace {

double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

LoadedModel::LoadedModel(const ModelFlags& flags) : flags_(flags) {
  (void)chosen_engine(flags.engine);  // an engine that is not here is said before a large file is read
  const auto start = std::chrono::steady_clock::now();
  file_.emplace(flags.model);
  check_dense_layers(flags.options, config().layers);
  packed_bytes_ = runtime::Model::packed_bytes(file_->file(), flags.precision);
  if (context() > config().context) {
    warnings_.push_back(fmt::format("-c {} is more than the {} tokens that the model was made for", context(),
                                    config().context));
  }
  load_seconds_ = since(start);
}

std::unique_ptr<runtime::Transformer> LoadedModel::open(std::int64_t capacity, bool dense) {
  // Packed weights need the file's only while they are packed; what is not packed is read from it for every token.
  check_model_memory(
      flags_.model, flags_, config(),
      std::max(static_cast<double>(packed_bytes_), static_cast<double>(file_->file().file_bytes())),
      capacity);
  const auto start = std::chrono::steady_clock::now();
  const int threads = flags_.options.threads > 0 ? flags_.options.threads : omp_get_max_threads();
  runtime::TransformerOptions options;
  options.engine = flags_.engine;
  options.attention = flags_.options;
  options.attention.dense = dense;
  options.attention.threads = threads;
  options.cache_type = flags_.cache_type;
  options.capacity = capacity;
  auto transformer =
      std::make_unique<runtime::Transformer>(file_->load({flags_.precision, threads}), options);
  load_seconds_ += since(start);
  return transformer;
}

}  // namespace headwater::cli
