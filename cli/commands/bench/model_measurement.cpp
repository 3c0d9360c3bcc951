#include "cli/commands/bench/model_measurement.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "cli/commands/bench/random_model.hpp"
#include "cli/commands/bench/read_rate.hpp"
#include "cli/support/attention_flags.hpp"
#include "cli/support/chosen_engine.hpp"
#include "cli/support/failure.hpp"
#include "cli/support/machine.hpp"
#include "cli/support/model_memory.hpp"
#include "cli/support/numbers.hpp"
#include "cli/support/output_file.hpp"
#include "cli/support/progress.hpp"
#include "cli/support/ranks.hpp"
#include "cli/support/streams.hpp"
#include "cli/support/text.hpp"
#include "headwater/engine.hpp"
#include "runtime/generate/sampler.hpp"
#include "runtime/gguf/row_kernels.hpp"
#include "runtime/model/threads.hpp"
#include "runtime/support/mapped_file.hpp"

namespace headwater::bench {

namespace {

using Clock = std::chrono::steady_clock;
using Ids = std::vector<std::int32_t>;

/// Larger than any cache, so that it is memory that is read.
constexpr std::size_t kReadBytes = std::size_t{512} << 20;

/// Token i of a prompt is (kTokenStep * i + seed) modulo the vocabulary, which any program can repeat.
constexpr std::uint64_t kTokenStep = 7919;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

runtime::ModelConfig config_of(const ModelShape& shape) {
  runtime::ModelConfig config;
  config.layers = shape.layers;
  config.width = shape.width;
  config.heads = shape.heads;
  config.heads_kv = shape.heads_kv;
  config.d_head = shape.d_head;
  config.d_value = shape.d_head;
  config.feed_forward = shape.feed_forward;
  config.vocabulary = shape.vocabulary;
  config.context = shape.context;
  return config;
}

/// The types of a file's matrices: "Q4_K, Q6_K".
std::string matrix_types(const runtime::GgufFile& file) {
  std::set<std::string_view> names;
  for (const runtime::Tensor& tensor : file.tensors()) {
    if (tensor.dims.size() == 2) names.insert(runtime::tensor_type_info(tensor.type).name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

/// A model with a transformer for sparse prefill, and one for dense.
class Bench {
 public:
  explicit Bench(const ModelBenchFlags& flags);
  ModelMeasurement run();

 private:
  void open_file();
  void check_memory(double weights, const runtime::ModelConfig& config) const;
  [[nodiscard]] std::unique_ptr<runtime::Transformer> open(bool dense);
  void describe(ModelMeasurement& measurement) const;
  void warm_up();
  void measure(std::int64_t tokens, ModelMeasurement& measurement);
  void fill_slots(std::int64_t tokens);
  [[nodiscard]] Seconds time_slots(std::int64_t tokens);
  PromptTimes time_prompt(runtime::Conversation& conversation, std::int64_t tokens, PromptRounds& rounds);
  [[nodiscard]] std::int64_t kv_bytes_per_token() const;
  [[nodiscard]] std::uint64_t weight_bytes() const {
    return std::max(runtime::Model::packed_bytes(*file_, flags_.model.precision, part_),
                    runtime::Model::file_bytes(*file_, part_));
  }
  [[nodiscard]] std::string name() const {
    return flags_.shape ? fmt::format("--random {}", flags_.shape->name) : flags_.model.model;
  }

  const ModelBenchFlags& flags_;
  int threads_;
  std::int64_t longest_;
  std::int64_t capacity_;
  std::shared_ptr<const runtime::GgufFile> file_;
  runtime::ModelPart part_;  // of this rank
  std::vector<std::string> rank_warnings_;
  std::shared_ptr<const runtime::Model> model_;
  std::unique_ptr<runtime::Transformer> sparse_, dense_;
  std::optional<runtime::Conversation> sparse_talk_, dense_talk_;
  std::vector<std::unique_ptr<runtime::Conversation>> others_;  // in the other slots of sparse_
  Ids ids_;
  LineBytes memory_;
  double load_seconds_ = 0;
};

Bench::Bench(const ModelBenchFlags& flags)
    : flags_(flags),
      threads_(flags.model.options.threads > 0 ? flags.model.options.threads : runtime::default_threads()),
      longest_(*std::max_element(flags.tokens.begin(), flags.tokens.end())),
      // Slots are filled once for all rounds, and the first one decodes twice in each.
      capacity_(longest_ + flags.decode * (flags.slots > 1 ? std::max(flags.rounds, 2) : 1)),
      memory_(0) {
  (void)cli::chosen_engine(flags.model.engine);  // an engine that is not here is said before anything is made
  if (capacity_ > cli::kMaxCount) {
    throw cli::Failure(fmt::format("-n {} and --decode {} make {}; allowed are {}", longest_, flags.decode,
                                   cli::count_text(capacity_, "token"), cli::kMaxCount));
  }
  const auto start = Clock::now();
  open_file();
  if (cli::serves()) cli::ranks()->serve([this](const pipeline::OpenCall& call) { return open(call.dense); });
  sparse_ = open(false);
  if (flags.dense) dense_ = open(true);
  load_seconds_ = since(start);
  sparse_talk_.emplace(*sparse_, flags.dense_tail);
  for (int slot = 1; slot < flags.slots; ++slot) {
    others_.push_back(std::make_unique<runtime::Conversation>(*sparse_, flags.dense_tail, slot));
  }
  if (dense_) dense_talk_.emplace(*dense_, 0);
  const auto vocabulary = static_cast<std::uint64_t>(model_->config().vocabulary);
  for (std::int64_t i = 0; i < capacity_; ++i) {
    ids_.push_back(
        static_cast<std::int32_t>((kTokenStep * static_cast<std::uint64_t>(i) + flags.seed) % vocabulary));
  }
  memory_ = LineBytes(kReadBytes);
}

void Bench::check_memory(double weights, const runtime::ModelConfig& config) const {
  cli::check_cache_type(flags_.model, config);
  const std::int64_t context = flags_.model.context.value_or(config.context);
  if (capacity_ > context) {
    throw cli::Failure(fmt::format(
        "-n {} and --decode {} make {}, but the context has {}; use fewer, or -c {} at the price of "
        "meaning",
        longest_, flags_.decode, cli::count_text(capacity_, "token"), context, capacity_));
  }
  cli::check_model_memory(name(), flags_.model, config, weights + static_cast<double>(kReadBytes), capacity_,
                          flags_.slots + (flags_.dense ? 1 : 0));
}

void Bench::open_file() {
  if (!flags_.shape) {
    file_ = std::make_shared<const runtime::GgufFile>(
        runtime::open_model_file(flags_.model.model, flags_.model.rotation));
    runtime::ModelConfig config = runtime::read_model_config(*file_);
    cli::check_dense_layers(flags_.model.options, config.layers);
    if (cli::ranks() != nullptr) {
      rank_warnings_ = cli::settle_ranks(flags_.model.ranks, flags_.model, *file_, config.layers);
      part_ = cli::ranks()->part();
      config.layers = cli::ranks()->layers();
    }
    check_memory(static_cast<double>(weight_bytes()), config);
    return;
  }
  const RandomModel random(*flags_.shape, flags_.type, flags_.seed);
  const auto stored = static_cast<double>(random.bytes());
  // Weights are packed, and what was packed stays in memory beside them.
  const std::int64_t element = runtime::tensor_type_info(flags_.type).block_bytes;
  const bool quantised = runtime::is_quantised(flags_.type);
  const double packed =
      quantised
          ? stored
          : stored / static_cast<double>(element) *
                static_cast<double>(runtime::precision_bytes(runtime::row_precision(flags_.model.precision)));
  cli::check_dense_layers(flags_.model.options, flags_.shape->layers);
  check_memory(stored + packed, config_of(*flags_.shape));
  file_ = in_memory(random, name(), threads_);
}

std::unique_ptr<runtime::Transformer> Bench::open(bool dense) {
  runtime::TransformerOptions options;
  options.engine = flags_.model.engine;
  options.attention = flags_.model.options;
  options.attention.dense = dense;
  options.attention.threads = threads_;
  options.cache_type = flags_.model.cache_type;
  options.capacity = capacity_;
  options.slots = dense ? 1 : flags_.slots;
  if (cli::ranks() != nullptr) options.relay = cli::ranks()->open({capacity_, options.slots, dense});
  if (!model_) model_ = runtime::Model::load(file_, {flags_.model.precision, threads_, part_});
  return std::make_unique<runtime::Transformer>(model_, options);
}

void Bench::describe(ModelMeasurement& measurement) const {
  const runtime::ModelConfig& config = model_->config();
  measurement.model = config.name.empty() ? flags_.model.model : config.name;
  measurement.architecture = config.architecture;
  measurement.weights = matrix_types(*file_);
  measurement.engine = sparse_->engine().name();
  measurement.isa = sparse_->engine().isa();
  measurement.projections = runtime::describe_products(flags_.model.precision);
  // Of several ranks a process sees its own processor time alone.
  measurement.by_processor_time = threads_ == 1 && cli::ranks() == nullptr;
  measurement.effective = sparse_->options();
  measurement.load_seconds = load_seconds_;
  measurement.weight_bytes = weight_bytes();
  measurement.session_memory = cli::memory_when_full(sparse_->session());
  measurement.workspace_bytes = sparse_->workspace_bytes();
  measurement.warnings = measurement.effective.warnings;
  measurement.warnings.insert(measurement.warnings.end(), rank_warnings_.begin(), rank_warnings_.end());
}

/// Pages, caches and threads.
void Bench::warm_up() {
  for (auto* conversation : {&sparse_talk_, &dense_talk_}) {
    if (!*conversation) continue;
    const std::int64_t some = std::min<std::int64_t>(longest_, 64);
    (*conversation)->feed({ids_.data(), static_cast<std::size_t>(some)});
    if (flags_.decode > 0) (*conversation)->append(ids_.front());
  }
}

std::int64_t Bench::kv_bytes_per_token() const {
  const runtime::ModelConfig& config = model_->config();
  return (std::ssize(model_->layers()) - config.recurrent_layers()) * config.heads_kv *
         cli::stored_bytes(config.d_head + config.d_value, flags_.model.cache_type,
                           flags_.model.options.kv_bits);
}

PromptTimes Bench::time_prompt(runtime::Conversation& conversation, std::int64_t tokens,
                               PromptRounds& rounds) {
  PromptTimes times;
  runtime::Transformer& transformer = conversation.transformer();
  conversation.reset();
  transformer.clear_times();
  Seconds start = seconds_now();
  conversation.feed({ids_.data(), static_cast<std::size_t>(tokens)});
  times.first_token = seconds_now() - start;
  times.phases = transformer.times();
  rounds.pairs = conversation.pairs();
  rounds.best_token = runtime::best_token(conversation.logits());
  rounds.best_logit = conversation.logits()[static_cast<std::size_t>(rounds.best_token)];
  transformer.clear_times();
  start = seconds_now();
  for (std::int64_t i = 0; i < flags_.decode; ++i) {
    conversation.append(ids_[static_cast<std::size_t>(tokens + i)]);
  }
  times.decode = seconds_now() - start;
  start = seconds_now();
  (void)read_seconds(memory_, threads_);
  const Seconds read = seconds_now() - start;
  const double share = static_cast<double>(rounds.bytes_per_token) / static_cast<double>(memory_.size());
  times.reading = {read.wall * share, read.cpu * share};
  return times;
}

void Bench::fill_slots(std::int64_t tokens) {
  for (const auto& talk : others_) {
    talk->reset();
    talk->feed({ids_.data(), static_cast<std::size_t>(tokens)});
  }
}

/// Slot 0, which has decoded its tokens alone, goes on, and so do the others from round to round.
Seconds Bench::time_slots(std::int64_t tokens) {
  std::vector<runtime::Conversation*> talks{&*sparse_talk_};
  for (const auto& talk : others_) talks.push_back(talk.get());
  Ids same(talks.size());
  const Seconds start = seconds_now();
  for (std::int64_t i = 0; i < flags_.decode; ++i) {
    std::fill(same.begin(), same.end(), ids_[static_cast<std::size_t>(tokens + i)]);
    runtime::Conversation::append(talks, same);
  }
  return seconds_now() - start;
}

void Bench::measure(std::int64_t tokens, ModelMeasurement& measurement) {
  const std::int64_t mean_depth = tokens + (flags_.decode + 1) / 2;
  const std::int64_t bytes = model_->bytes_per_token() + mean_depth * kv_bytes_per_token();
  std::vector<PromptRounds> modes = {{tokens, false, {}, bytes, {}, 0, 0.0F}};
  if (dense_) modes.push_back({tokens, true, {}, bytes, {}, 0, 0.0F});
  fill_slots(tokens);
  for (int round = 0; round < flags_.rounds; ++round) {
    for (std::size_t i = 0; i < modes.size(); ++i) {
      PromptRounds& mode = modes[(i + static_cast<std::size_t>(round)) % modes.size()];
      mode.rounds.push_back(time_prompt(mode.dense ? *dense_talk_ : *sparse_talk_, tokens, mode));
      if (!mode.dense && !others_.empty()) mode.rounds.back().together = time_slots(tokens);
    }
  }
  std::move(modes.begin(), modes.end(), std::back_inserter(measurement.prompts));
}

ModelMeasurement Bench::run() {
  ModelMeasurement measurement;
  describe(measurement);
  cli::warn(measurement.warnings);
  warm_up();
  cli::Progress progress(flags_.tokens.size(), "bench");
  for (const std::int64_t tokens : flags_.tokens) {
    measure(tokens, measurement);
    progress.advance(1);
  }
  measurement.ranks = cli::rank_reports();
  return measurement;
}

}  // namespace

const PromptTimes& PromptRounds::middle() const {
  std::vector<const PromptTimes*> order;
  for (const PromptTimes& times : rounds) order.push_back(&times);
  std::sort(order.begin(), order.end(),
            [](const auto* a, const auto* b) { return a->first_token.wall < b->first_token.wall; });
  return *order[(order.size() - 1) / 2];
}

ModelMeasurement measure_model(const ModelBenchFlags& flags) { return Bench(flags).run(); }

void save_random_model(const ModelBenchFlags& flags) {
  const RandomModel random(*flags.shape, flags.type, flags.seed);
  const std::uint64_t limit = cli::memory_limit();
  if (random.bytes() > limit) {
    throw cli::Failure(fmt::format("--random {}: the file has {}, but the machine has {} of memory",
                                   flags.shape->name, cli::bytes_text(random.bytes()),
                                   cli::bytes_text(limit)));
  }
  cli::OutputFile file(*flags.save, nullptr);
  file.reserve(random.bytes());
  const runtime::AlignedBuffer buffer(random.bytes());
  const std::span<std::byte> bytes(buffer.data(), buffer.size());
  random.write(bytes, runtime::default_threads());
  file.write_at(0, bytes);
  file.commit();
}

}  // namespace headwater::bench
