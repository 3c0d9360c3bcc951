#include "runtime/model/transformer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include "headwater/detail/option_table.hpp"
#include "headwater/error.hpp"
#include "headwater/preset.hpp"
#include "headwater/rope.hpp"
#include "headwater/state.hpp"
#include "headwater/testing/sabotage.hpp"
#include "optimized/threads/team.hpp"
#include "runtime/model/kernels/tile_kernels.hpp"
#include "runtime/model/recurrent_session.hpp"
#include "runtime/model/sinks.hpp"

namespace headwater::runtime {
namespace {

constexpr std::int64_t kRowsOfTask = 16;  ///< of loops over rows: enough work to be worth handing out

std::size_t bytes(std::int64_t rows, std::int64_t width, std::int64_t element = sizeof(float)) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(width) * static_cast<std::size_t>(element);
}

Shape session_shape(const Model& model, const TransformerOptions& options) {
  const ModelConfig& config = model.config();
  Shape shape;
  shape.n_layer = static_cast<std::int64_t>(model.layers().size()) - config.recurrent_layers();
  shape.n_head = config.heads;
  shape.n_head_kv = config.heads_kv;
  shape.d_head = config.d_head;
  shape.d_value = config.d_value;
  shape.capacity = options.capacity;
  shape.kv_type = options.cache_type;
  return shape;
}

/// Runs action(row) for every row, rows shared out among the threads.
template <typename Action>
void for_each_row(int threads, std::int64_t n, const Action& action) {
  parallel_tasks(threads, (n + kRowsOfTask - 1) / kRowsOfTask, [&](std::int64_t task, int) {
    const std::int64_t last = std::min(n, (task + 1) * kRowsOfTask);
    for (std::int64_t row = task * kRowsOfTask; row < last; ++row) action(row);
  });
}

/// Another rule, with the sizes that its preset has.
void take_rule(Select rule, Options& options) {
  const Options own = rule == Select::h2o      ? Options{}
                      : rule == Select::blocks ? preset(Quality::fast)
                                               : preset(Quality::balanced);
  options.select = rule;
  options.pinned = own.pinned;
  detail::for_each_option(detail::Part::size,
                          [&](const auto& option) { options.*option.asked = own.*option.asked; });
}

}  // namespace

/// Adds the time since its last lap to one of the phases.
class Transformer::Stopwatch {
 public:
  Stopwatch() : last_(Clock::now()) {}
  void lap(double& phase) {
    const auto now = Clock::now();
    phase += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point last_;
};

Transformer::Transformer(std::shared_ptr<const Model> model, const TransformerOptions& options)
    : model_(std::move(model)), engine_(headwater::engine(options.engine)), relay_(options.relay) {
  if (options.slots < 1 || options.slots > kMostSlots) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("slots is {}; allowed: 1 .. {}", options.slots, kMostSlots));
  }
  if (relay_ && model_->config().recurrent_layers() > 0) {
    throw Error(ErrorCode::invalid_argument,
                "a model with recurrent layers runs in one process; allowed: no other parts");
  }
  place_layers();
  Options attention = options.attention;
  if (!attention.parallel_for) attention.parallel_for = lend_threads;
  const ModelPart& part = model_->part();
  attention.dense_layers.clear();
  for (const std::int64_t layer : options.attention.dense_layers) {
    if (!part.has_layer(layer)) continue;
    std::int64_t own = layer - (HEADWATER_SABOTAGE("runtime.parts.layer_of_the_whole") ? 0 : part.first);
    if (model_->config().recurrent_layers() > 0 &&
        own < std::ssize(places_)) {  // else the session refuses it
      if (model_->config().layer_specs[static_cast<std::size_t>(layer)].recurrent) continue;
      own = place_of(own);
    }
    attention.dense_layers.push_back(own);
  }
  describe_attention(attention);
  session_shape_ = session_shape(*model_, options);
  session_options_ = std::move(attention);
  for (int slot = 0; slot < options.slots; ++slot) sessions_.push_back(open_session());
  take_workspaces();
  if (relay_) {
    options_.dense_layers = options.attention.dense_layers;
    relay_->opened();
  }
}

Transformer::Transformer(Transformer& from, int slot)
    : model_(from.model_),
      engine_(from.engine_),
      session_shape_(from.session_shape_),
      session_options_(from.session_options_) {
  from.refuse_parts("forked");
  place_layers();
  sessions_.push_back(from.session(slot).fork());
  take_workspaces();
}

void Transformer::place_layers() {
  const ModelConfig& config = model_->config();
  std::int64_t next[2] = {};
  for (std::int64_t i = 0; i < std::ssize(model_->layers()); ++i) {
    const LayerSpec& spec = config.layer_specs[static_cast<std::size_t>(model_->part().first + i)];
    places_.push_back(next[spec.recurrent ? 1 : 0]++);
  }
}

std::int64_t Transformer::place_of(std::int64_t layer) const {
  return places_[static_cast<std::size_t>(layer)];
}

std::size_t Transformer::state_floats() const {
  const ModelConfig& config = model_->config();
  return static_cast<std::size_t>(config.recurrent_layers() * config.delta.state_floats());
}

void Transformer::take_workspaces() {
  const ModelConfig& config = model_->config();
  options_ = session().options();
  if (config.recurrent_layers() > 0) {  // they are numbered as the model's
    options_.dense_layers.clear();
    for (std::int64_t i = 0; i < config.layers; ++i) {
      const bool attends = !config.layer_specs[static_cast<std::size_t>(i)].recurrent;
      if (attends && session().options().dense_layer(place_of(i))) options_.dense_layers.push_back(i);
    }
  }
  active_.reserve(sessions_.size());
  calls_.resize(sessions_.size());
  ids_.reserve(sessions_.size());
  const EffectiveOptions& effective = session().options();
  threads_ = effective.threads;
  max_step_ = std::min(effective.batch, session_shape_.capacity);
  qkv_width_ = (config.heads + config.heads_kv) * config.d_head + config.heads_kv * config.d_value;
  if (config.gated_attention) qkv_width_ += config.heads * config.d_value;
  const std::int64_t most = std::max<std::int64_t>(max_step_, slots());
  const std::int64_t rows = workspace_rows();
  const std::int64_t element = precision_bytes(model_->precision());
  positions_.reserve(static_cast<std::size_t>(most));
  residual_ = AlignedBuffer(bytes(most, config.width));
  normed_ = AlignedBuffer(bytes(rows, config.width, element));
  bf16_rows_ = session_shape_.kv_type == DType::bf16 && model_->precision() == Precision::bf16;
  heads_in_tiles_ =
      kStripColumns % config.d_head == 0 && config.head_norms != HeadNorms::together && config.latent == 0;
  qkv_ = AlignedBuffer(bytes(bf16_rows_ && heads_in_tiles_ ? slots() : most, qkv_width_));
  if (bf16_rows_) narrow_ = AlignedBuffer(bytes(most, qkv_width_, sizeof(std::uint16_t)));
  const DeltaShape& delta = config.delta;
  const std::int64_t inner = delta.value_heads * delta.d;
  attended_ = AlignedBuffer(bytes(rows, std::max(config.heads * config.d_value, inner), element));
  if (delta.value_heads > 0) {
    delta_ = AlignedBuffer(bytes(most, delta.channels() + inner + 2 * delta.value_heads));
    mixed_ = AlignedBuffer(bytes(most, delta.channels()));
    const auto d = static_cast<float>(delta.d);
    query_scale_.assign(static_cast<std::size_t>(delta.d), 1 / d);
    key_scale_.assign(static_cast<std::size_t>(delta.d), 1 / std::sqrt(d));
  }
  hidden_ = AlignedBuffer(bytes(rows, config.widest_feed_forward(), element));
  if (config.norms_after || config.experts > 0) branch_ = AlignedBuffer(bytes(rows, config.width));
  if (config.experts > 0) {
    routed_ = AlignedBuffer(bytes(most, config.experts));
    gathered_ = AlignedBuffer(bytes(rows, config.width, element));
    routing_.reserve(most, config.experts, config.experts_used, config.weights_of_all);
    shared_visits_.resize(static_cast<std::size_t>(most));
    expert_blocks_.reserve(std::max(most_blocks(max_step_, effective.chunk), std::size_t{1}));
  }
  if (config.latent > 0) {
    const LayerWeights& layer = model_->layers().front();
    latent_ = AlignedBuffer(bytes(most, layer.latent->width()));
    latent_normed_ = AlignedBuffer(bytes(rows, config.latent, element));
    expanded_ = AlignedBuffer(bytes(most, layer.latent_up->width()));
  }
  rotation_ = AlignedBuffer(bytes(most, rotation_width()));
  blocks_.reserve(std::max(most_blocks(max_step_, effective.chunk), std::size_t{1}));
  scratch_.resize(static_cast<std::size_t>(threads_));
  for (ProjectionScratch& one : scratch_) one.memory = AlignedBuffer(model_->scratch_bytes());
}

/// What the model's layers say of attention.
void Transformer::describe_attention(Options& attention) const {
  const ModelConfig& config = model_->config();
  attention.scale = config.attention_scale;
  attention.softcap = config.attention_softcap;
  if (config.windowed_layers() == 0 && !config.sinks) return;
  const auto first = static_cast<std::size_t>(model_->part().first);
  attention.layers.resize(model_->layers().size());
  for (std::size_t i = 0; i < attention.layers.size(); ++i) {
    attention.layers[i].window = config.layer_specs[first + i].window;
    if (HEADWATER_SABOTAGE("runtime.layers.no_windows")) attention.layers[i].window = 0;
    if (config.sinks) attention.layers[i].sinks = model_->layers()[i].sinks;
  }
}

std::int64_t Transformer::prefill_step(std::int64_t done, std::int64_t n, bool opens) const {
  const bool sparse = opens && options_.sparse_turn(n, true) && options_.dense_layers.empty() &&
                      model_->config().windowed_layers() == 0;
  if (!relay_ || !sparse) return std::min(max_step_, n - done);
  // Chunks begin anew with every batch.
  if (HEADWATER_SABOTAGE("runtime.parts.chunks_run_on")) return std::min(options_.chunk, n - done);
  return std::min({options_.chunk, max_step_ - done % max_step_, n - done});
}

std::uint64_t Transformer::workspace_bytes() const {
  std::uint64_t total = 0;
  for (const AlignedBuffer* buffer :
       {&residual_, &normed_, &qkv_, &narrow_, &attended_, &delta_, &mixed_, &hidden_, &branch_, &routed_,
        &gathered_, &rotation_, &latent_, &latent_normed_, &expanded_}) {
    total += buffer->size();
  }
  for (const ProjectionScratch& one : scratch_) total += one.memory.size();
  return total;
}

void Transformer::reset(int slot) {
  session(slot).reset();
  step_rows_ = 0;
  PartCall call;
  call.kind = PartCall::Kind::reset;
  call.slot = slot;
  if (relay_) relay_->pass(call, {});
}

void Transformer::truncate(std::int64_t tokens, int slot) {
  session(slot).truncate(tokens);
  if (HEADWATER_SABOTAGE("runtime.parts.truncated_alone")) return;
  step_rows_ = 0;
  PartCall call;
  call.kind = PartCall::Kind::truncate;
  call.slot = slot;
  call.first = tokens;
  if (relay_) relay_->pass(call, {});
}

Options Transformer::session_options(const PromptRule& rule) const {
  Options options = session_options_;
  options.dense = options.dense || rule.dense;
  if (!rule.select && !rule.memory) return options;
  if (options.dense) {
    throw Error(ErrorCode::invalid_argument,
                "prefill is dense and has no memory sets; allowed: a rule or a memory for sparse prefill");
  }
  constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 1;
  const std::int64_t memory = rule.memory.value_or(options.local + options.heavy);
  if (memory < 1 || memory > kMost) {
    throw Error(ErrorCode::invalid_argument, fmt::format("memory is {}; allowed: 1 .. {}", memory, kMost));
  }
  if (rule.select && *rule.select != options.select) take_rule(*rule.select, options);
  options.local = std::min(options.local, memory);
  options.heavy = memory - options.local;
  if (options.select == Select::blocks) options.heavy -= options.heavy % options.key_block;
  options.pinned = std::min(options.pinned, options.heavy);
  return options;
}

std::unique_ptr<Session> Transformer::open_session(const PromptRule& rule) const {
  if (state_floats() > 0)
    return RecurrentEngine(engine_, state_floats()).open(session_shape_, session_options(rule));
  return engine_.open(session_shape_, session_options(rule));
}

std::unique_ptr<Session> Transformer::load_session(const std::string& path, const std::string& fingerprint,
                                                   const PromptRule& rule) const {
  const RecurrentEngine recurrent(engine_, state_floats());
  const Engine& engine = state_floats() > 0 ? recurrent : engine_;
  return load(engine, session_shape_, session_options(rule), path, fingerprint);
}

void Transformer::refuse_parts(const char* what) const {
  if (!relay_) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("a session of several parts cannot be {}; allowed: a model in one part", what));
}

std::unique_ptr<Session> Transformer::exchange(int slot, std::unique_ptr<Session> session) {
  refuse_parts("exchanged");
  step_rows_ = 0;
  std::swap(sessions_[static_cast<std::size_t>(slot)], session);
  return session;
}

void Transformer::pass(PartCall call) {
  if (!relay_) return;
  relay_->pass(call, {residual_.floats(), static_cast<std::size_t>(step_rows_ * model_->config().width)});
}

void Transformer::check_id(std::int32_t id) const {
  const std::int64_t vocabulary = model_->config().vocabulary;
  if (id >= 0 && id < vocabulary) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("token id is {}; allowed: 0 .. {}", id, vocabulary - 1));
}

void Transformer::run(const Step& step, std::span<const std::int32_t> ids, int slot) {
  const auto n = static_cast<std::int64_t>(ids.size());
  if (n != step.n || n > max_step_) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("a step of {} tokens got {} ids; allowed: as many, 1 .. {}", step.n, n, max_step_));
  }
  for (const std::int32_t id : ids) check_id(id);
  begin(step, slot);
  run_layers(ids);
  PartCall call;
  call.kind = PartCall::Kind::run;
  call.slot = slot;
  call.step = step;
  pass(call);
}

void Transformer::begin(const Step& step, int slot) {
  Session& own = session(slot);
  std::int64_t first_position = own.tokens();
  if (HEADWATER_SABOTAGE("runtime.turn.positions_from_0") && step.kind == Step::Kind::prefill) {
    first_position -= first_position > 4096 ? first_position : 0;
  }
  own.begin(step);
  ids_.clear();
  active_.assign(1, &own);
  few_ = step.kind == Step::Kind::decode && step.n == 1;
  positions_.clear();
  for (std::int64_t row = 0; row < step.n; ++row) positions_.push_back(first_position + row);
}

void Transformer::decode(std::span<const SlotToken> tokens) {
  if (tokens.empty()) throw Error(ErrorCode::invalid_argument, "no token to decode; allowed: 1 or more");
  for (const SlotToken& token : tokens) {
    check_id(token.id);
    const auto same = [&](const SlotToken& other) { return other.slot == token.slot; };
    if (token.slot >= 0 && token.slot < slots() && std::count_if(tokens.begin(), tokens.end(), same) == 1)
      continue;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("slot is {}; allowed: 0 .. {}, each once", token.slot, slots() - 1));
  }
  for (const SlotToken& token : tokens) {
    const Session& one = session(token.slot);
    if (tokens.size() == 1 || one.tokens() < one.shape().capacity) continue;  // begin() says it
    throw Error(ErrorCode::capacity_exceeded, fmt::format("slot {} has {} tokens; allowed: {} in all",
                                                          token.slot, one.tokens(), one.shape().capacity));
  }
  begin(tokens);
  run_layers(ids_);
  PartCall call;
  call.kind = PartCall::Kind::decode;
  for (const SlotToken& token : tokens) call.slots[static_cast<std::size_t>(call.tokens++)] = token.slot;
  pass(call);
}

void Transformer::begin(std::span<const SlotToken> tokens) {
  active_.clear();
  positions_.clear();
  ids_.clear();
  for (const SlotToken& token : tokens) {
    Session& one = session(token.slot);
    active_.push_back(&one);
    positions_.push_back(HEADWATER_SABOTAGE("runtime.slots.position_of_the_first") ? active_.front()->tokens()
                                                                                   : one.tokens());
    ids_.push_back(token.id);
    try {
      one.begin(Step::decode());
    } catch (...) {
      active_.pop_back();
      if (!HEADWATER_SABOTAGE("runtime.slots.begun_left_open")) abort_active();
      throw;
    }
  }
  few_ = true;
}

void Transformer::abort_active() {
  for (Session* const one : active_) {
    try {
      one->abort();
    } catch (const Error&) {  // not offered: only reset() is left
    }
  }
}

void Transformer::repeat(const PartCall& call, std::span<const float> rows) {
  const auto refuse = [](const char* what) {
    throw Error(ErrorCode::invalid_argument, fmt::format("a call of the part before is refused: {}", what));
  };
  if (!relay_ || model_->part().has_embedding()) refuse("no part is before this one");
  const std::int64_t width = model_->config().width;
  const auto n = static_cast<std::int64_t>(rows.size()) / width;
  if (call.slot < 0 || call.slot >= slots()) refuse("its slot is not there");
  switch (call.kind) {
    case PartCall::Kind::run:
      if (n != call.step.n || n > max_step_ || n * width != static_cast<std::int64_t>(rows.size())) {
        refuse("its rows are not those of its step");
      }
      ids_.clear();
      begin(call.step, call.slot);
      // A turn behind the first one, whose positions this part takes from a session of its own.
      if (HEADWATER_SABOTAGE("runtime.parts.turn_one_off") && positions_.front() > 0 &&
          call.step.turn_length == 0) {
        for (std::int64_t& position : positions_) --position;
      }
      run_layers({}, rows);
      pass(call);
      return;
    case PartCall::Kind::decode: {
      std::array<SlotToken, kMostSlots> tokens;
      static_assert(std::tuple_size_v<decltype(call.slots)> == kMostSlots);
      if (n != call.tokens || n < 1 || n > slots() || n * width != static_cast<std::int64_t>(rows.size())) {
        refuse("its rows are not those of its slots");
      }
      for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
        if (call.slots[i] < 0 || call.slots[i] >= slots()) refuse("one of its slots is not there");
        tokens[i] = {call.slots[i], 0};
      }
      if (HEADWATER_SABOTAGE("runtime.parts.slots_in_order")) {
        std::sort(tokens.begin(), tokens.begin() + n,
                  [](const SlotToken& a, const SlotToken& b) { return a.slot < b.slot; });
      }
      begin(std::span(tokens).first(static_cast<std::size_t>(n)));
      run_layers({}, rows);
      pass(call);
      return;
    }
    case PartCall::Kind::logits:
      if (call.first < 0 || call.count < 1 || call.count > step_rows_ - call.first) {
        refuse("its logits are those of no token of the last step");
      }
      relay_->pass(call, {});
      if (!model_->part().has_head()) return;
      answer_.resize(static_cast<std::size_t>(call.count * model_->config().vocabulary));
      few_ = call.few;
      project_logits(call.first, call.count, answer_.data());
      if (HEADWATER_SABOTAGE("runtime.parts.last_logits_lost")) answer_.back() = 0;
      relay_->answer(answer_);
      return;
    case PartCall::Kind::reset: reset(call.slot); return;
    case PartCall::Kind::truncate: truncate(call.first, call.slot); return;
  }
  refuse("its kind is not known");
}

void Transformer::run_layers(std::span<const std::int32_t> ids, std::span<const float> rows) {
  const auto n = static_cast<std::int64_t>(positions_.size());
  step_rows_ = 0;  // until the step is done
  blocks_.clear();
  if (!few_) {
    cut_into_blocks(n, session().options().chunk, blocks_);
    initialise_rows(n + kRowPadding);
  }
  Stopwatch watch;
  if (rows.empty()) {
    embed(ids);
  } else {
    std::copy(rows.begin(), rows.end(), residual_.floats());
  }
  tabulate_rotations();
  watch.lap(times_.other);
  const auto layers = static_cast<std::int64_t>(model_->layers().size());
  for (std::int64_t layer = 0; layer < layers; ++layer) run_layer(layer, n);
  for (Session* const one : active_) one->end();
  step_rows_ = n;
}

void Transformer::initialise_rows(std::int64_t rows) {
  if (rows <= initialised_rows_) return;
  const std::int64_t longest = workspace_rows();
  for (const AlignedBuffer* buffer :
       {&normed_, &attended_, &hidden_, &branch_, &gathered_, &latent_normed_}) {
    const std::size_t row = buffer->size() / static_cast<std::size_t>(longest);
    std::fill_n(buffer->data() + static_cast<std::size_t>(initialised_rows_) * row,
                static_cast<std::size_t>(rows - initialised_rows_) * row, std::byte{0});
  }
  initialised_rows_ = rows;
}

void Transformer::embed(std::span<const std::int32_t> ids) {
  const std::int64_t width = model_->config().width;
  for_each_row(threads_, static_cast<std::int64_t>(ids.size()), [&](std::int64_t row) {
    model_->embed(ids[static_cast<std::size_t>(row)], residual_.floats() + row * width);
  });
}

std::int64_t Transformer::rotation_width() const {
  const std::vector<RopeFrequencies>& rotations = model_->config().rotations;
  return static_cast<std::int64_t>(rotations.size() * 2 * rotations.front().inverse.size());
}

/// Fills the tables of cosines and sines, times the magnitude, of every rotation: the library's own (ROPE-3) of (1, 0),
/// once for all layers and heads.
void Transformer::tabulate_rotations() {
  const auto pairs = static_cast<std::int64_t>(model_->config().rotations.front().inverse.size());
  for_each_row(threads_, static_cast<std::int64_t>(positions_.size()), [&](std::int64_t row) {
    float* table = rotation_.floats() + row * rotation_width();
    std::int64_t position = positions_[static_cast<std::size_t>(row)];
    if (HEADWATER_SABOTAGE("runtime.rope.table_wraps_at_8192")) position %= 8192;
    if (HEADWATER_SABOTAGE("runtime.rope.position_in_16_bits"))
      position = static_cast<std::uint16_t>(position);
    for (const RopeFrequencies& rope : model_->config().rotations) {
      std::fill_n(table, pairs, 1.0F);
      std::fill_n(table + pairs, pairs, 0.0F);
      rotate(MutableRows::token_major(table, DType::f32, 1, 2 * pairs), 1, 1, 2 * pairs, position,
             rope.inverse, rope.magnitude, RopeLayout::split_halves);
      table += 2 * pairs;
    }
  });
}

/// Of queries of the step's row.
float Transformer::temperature(std::int64_t row) const {
  const ModelConfig& config = model_->config();
  if (config.temperature_scale == 0) return 1;
  const std::int64_t lengths = positions_[static_cast<std::size_t>(row)] / config.temperature_length;
  return static_cast<float>(1 + config.temperature_scale * std::log1p(static_cast<double>(lengths)));
}

void Transformer::norm(const float* from, const std::vector<float>& weight, std::int64_t n) {
  const std::int64_t width = model_->config().width;
  norm(from, width, weight, width, normed_, n);
}

void Transformer::norm(const float* from, std::int64_t apart, const std::vector<float>& weight,
                       std::int64_t elements, AlignedBuffer& to, std::int64_t n) {
  const ModelConfig& config = model_->config();
  const Kernels& loops = kernels();
  const bool by_mean = config.norm == Norm::layer;
  const auto to_floats = by_mean ? loops.layer_norm : loops.rms_norm;
  const auto to_rounded = by_mean ? loops.layer_norm_bf16 : loops.rms_norm_bf16;
  std::int64_t width = elements;
  if (HEADWATER_SABOTAGE("runtime.norm.first_1024_elements")) width = std::min<std::int64_t>(width, 1024);
  for_each_row(threads_, n, [&](std::int64_t row) {
    const float* const x = from + row * apart;
    float* const floats = to.floats() + row * elements;
    auto* const narrow = reinterpret_cast<std::uint16_t*>(to.data()) + row * elements;
    if (weight.empty()) {
      rounded() ? loops.to_bf16(x, width, narrow) : (void)std::copy_n(x, width, floats);
    } else if (rounded()) {
      to_rounded(x, weight.data(), width, config.norm_epsilon, narrow);
    } else {
      to_floats(x, weight.data(), width, config.norm_epsilon, floats);
    }
  });
}

void Transformer::project(const Projection& projection, void* x, std::int64_t n, const TileSink& sink) {
  if (few_) {
    projection.multiply_few(static_cast<const float*>(x), n, threads_, scratch_, sink);
  } else {
    projection.multiply(x, blocks_, threads_, scratch_, sink);
  }
}

/// What a part of a layer adds to the residual stream.
void Transformer::add_projected(const Projection& projection, void* x, std::int64_t n,
                                const std::vector<float>& bias, const std::vector<float>& after_norm) {
  const ModelConfig& config = model_->config();
  Stopwatch watch;
  if (after_norm.empty()) {
    project(projection, x, n, AddSink(residual_.floats(), config.width, bias, config.residual_scale));
    watch.lap(times_.projections);
    return;
  }
  project(projection, x, n, StoreSink(branch_.floats(), config.width, bias));
  watch.lap(times_.projections);
  const Kernels& loops = kernels();
  for_each_row(threads_, n, [&](std::int64_t row) {
    loops.add_rms_norm(branch_.floats() + row * config.width, after_norm.data(), config.width,
                       config.norm_epsilon, residual_.floats() + row * config.width);
  });
  watch.lap(times_.other);
}

void Transformer::expand_latent(const LayerWeights& layer, std::int64_t n) {
  const ModelConfig& config = model_->config();
  const std::int64_t width = layer.latent->width();
  const std::int64_t expanded = layer.latent_up->width();
  norm(residual_.floats(), layer.attention_norm, n);  // the product of the queries may have changed the rows
  project(*layer.latent, normed_.data(), n, StoreSink(latent_.floats(), width, {}));
  norm(latent_.floats(), width, layer.latent_norm, config.latent, latent_normed_, n);
  project(*layer.latent_up, latent_normed_.data(), n, StoreSink(expanded_.floats(), expanded, {}));
  const std::int64_t rotated = width - config.latent;
  const std::int64_t plain = config.d_head - rotated;
  for_each_row(threads_, n, [&](std::int64_t row) {
    const float* from = expanded_.floats() + row * expanded;
    float* to = qkv_.floats() + row * qkv_width_ + config.heads * config.d_head;
    for (std::int64_t h = 0; h < config.heads_kv; ++h, from += plain, to += config.d_head) {
      std::copy_n(latent_.floats() + row * width + config.latent, rotated, to);
      std::copy_n(from, plain, to + rotated);
    }
    std::copy_n(from, config.heads_kv * config.d_value, to);
  });
}

/// Queries, keys and values as attention reads them: value (+ bias[column]), with the norms of heads, the rotation, and
/// rounding where the engine gets rounded rows. A head must lie in one tile.
class Transformer::HeadSink final : public TileSink {
 public:
  HeadSink(const Transformer& of, const LayerWeights& layer, const LayerSpec& spec)
      : of_(of),
        config_(of.model_->config()),
        layer_(layer),
        pairs_(static_cast<std::int64_t>(config_.rotations.front().inverse.size())),
        rotated_(spec.rotation != LayerSpec::kNotRotated),
        turn_(config_.rope_layout == RopeLayout::adjacent_pairs ? kernels().rotate_adjacent
                                                                : kernels().rotate_halves) {
    const bool long_one = config_.long_beyond > 0 && of.session().shape().capacity > config_.long_beyond;
    const int own = HEADWATER_SABOTAGE("runtime.layers.one_rotation") ? 0 : spec.rotation;
    if (rotated_) table_ = (own + (long_one ? 1 : 0)) * 2 * pairs_;
  }

  void take(const Tile& tile) const override {
    const float* const bias = layer_.qkv_bias.empty() ? nullptr : layer_.qkv_bias.data() + tile.column;
    float values[Projection::kPanelWidth];
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      const std::int64_t row = tile.row + r;
      float* const x = of_.bf16_rows_ ? values : of_.qkv_row(row) + tile.column;
      std::copy_n(tile.values + r * tile.stride, tile.columns, x);
      for (std::int64_t c = 0; bias != nullptr && c < tile.columns; ++c) x[c] += bias[c];
      finish(row, tile.column, tile.columns, x);
    }
  }

  /// What follows the product and its bias, on `columns` of the row that begin with a whole head.
  void finish(std::int64_t row, std::int64_t column, std::int64_t columns, float* x) const {
    const Kernels& loops = kernels();
    const float* const cosine = of_.rotation_.floats() + row * of_.rotation_width() + table_;
    std::int64_t heads = config_.heads + config_.heads_kv;
    if (HEADWATER_SABOTAGE("runtime.heads.first_128_rotated")) heads = std::min<std::int64_t>(heads, 128);
    const float sharper = of_.temperature(row);
    const std::int64_t d = config_.d_head;
    const std::int64_t last = std::min(heads, (column + columns) / d);
    for (std::int64_t h = column / d; h < last; ++h) {
      float* const head = x + h * d - column;
      if (config_.head_norms == HeadNorms::each) {
        const std::vector<float>& weight = h < config_.heads ? layer_.query_norm : layer_.key_norm;
        loops.rms_norm(head, weight.data(), d, config_.norm_epsilon, head);
      }
      if (rotated_) turn_(head, cosine, cosine + pairs_, pairs_);
      if (sharper == 1 || h >= config_.heads) continue;
      for (std::int64_t i = 0; i < d; ++i) head[i] *= sharper;
    }
    if (of_.bf16_rows_) loops.to_bf16(x, columns, of_.rounded_row(row) + column);
  }

 private:
  const Transformer& of_;
  const ModelConfig& config_;
  const LayerWeights& layer_;
  std::int64_t pairs_;
  std::int64_t table_ = 0;  // where the layer's rotation begins in a row of rotation_
  bool rotated_;
  decltype(Kernels::rotate_halves) turn_;
};

/// The layer's queries, keys and values, of normed_.
void Transformer::project_heads(const LayerWeights& layer, const LayerSpec& spec, std::int64_t n) {
  const ModelConfig& config = model_->config();
  const Kernels& loops = kernels();
  const HeadSink heads(*this, layer, spec);
  Stopwatch watch;
  if (heads_in_tiles_ && !few_) {
    project(*layer.qkv, normed_.data(), n, heads);
    watch.lap(times_.projections);
    return;
  }
  project(*layer.qkv, normed_.data(), n, StoreSink(qkv_.floats(), qkv_width_, layer.qkv_bias));
  if (layer.latent) expand_latent(layer, n);
  watch.lap(times_.projections);
  for_each_row(threads_, n, [&](std::int64_t row) {
    float* const rows = qkv_row(row);
    if (config.head_norms == HeadNorms::together) {
      const std::int64_t queries = config.heads * config.d_head;
      loops.rms_norm(rows, layer.query_norm.data(), queries, config.norm_epsilon, rows);
      loops.rms_norm(rows + queries, layer.key_norm.data(), config.heads_kv * config.d_head,
                     config.norm_epsilon, rows + queries);
    }
    heads.finish(row, 0, qkv_width_, rows);
  });
  watch.lap(times_.other);
}

Rows Transformer::rows_at(std::int64_t column, std::int64_t width, std::int64_t row) const {
  if (bf16_rows_) return {rounded_row(row) + column, DType::bf16, qkv_width_, width};
  return {qkv_row(row) + column, DType::f32, qkv_width_, width};
}

void Transformer::show(LayerView::Stage stage, std::int64_t layer, std::int64_t n) const {
  if (!observer_) return;
  const ModelConfig& config = model_->config();
  const std::int64_t keys = config.heads * config.d_head;
  const std::int64_t values = keys + config.heads_kv * config.d_head;
  observer_({stage, layer, n, residual_.floats(), rows_at(0, config.d_head), rows_at(keys, config.d_head),
             rows_at(values, config.d_value)});
}

void Transformer::attend(std::int64_t layer, std::int64_t n) {
  const ModelConfig& config = model_->config();
  const std::int64_t keys = config.heads * config.d_head;
  const std::int64_t values = keys + config.heads_kv * config.d_head;
  show(LayerView::Stage::attention, layer, n);
  const DType type = rounded() ? DType::bf16 : DType::f32;
  const std::int64_t row_width = config.heads * config.d_value;
  for (std::size_t i = 0; i < active_.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    SequenceCall& call = calls_[i];
    call.session = &rows_of(*active_[i]);
    call.layer = place_of(layer);
    call.q = rows_at(0, config.d_head, row);
    call.k = rows_at(keys, config.d_head, row);
    call.v = rows_at(values, config.d_value, row);
    call.out = MutableRows::token_major(attended_.data() + bytes(row, row_width), type, config.heads,
                                        config.d_value);
  }
  if (active_.size() > 1) {
    attend_together(std::span(calls_).first(active_.size()));
    return;
  }
  const SequenceCall& call = calls_.front();
  call.session->attend(call.layer, call.q, call.k, call.v, call.out);
}

double Transformer::selection_seconds() const {
  double seconds = 0;
  for (const Session* const one : active_) seconds += std::max(0.0, one->stage_seconds().selection);
  return seconds;
}

void Transformer::run_gate(const LayerWeights& layer, const std::vector<float>& norm_weight, std::int64_t n) {
  const ModelConfig& config = model_->config();
  Stopwatch watch;
  norm(residual_.floats(), norm_weight, n);
  watch.lap(times_.other);
  project(*layer.gate_up, normed_.data(), n,
          GateSink(config.gate, hidden_.data(), layer.down->depth(), {}, rounded()));
  watch.lap(times_.projections);
}

void Transformer::run_feed_forward(const LayerWeights& layer, std::int64_t n) {
  if (!model_->config().parallel) run_gate(layer, layer.mlp_norm, n);
  add_projected(*layer.down, hidden_.data(), n, {}, layer.mlp_after_norm);
}

/// The router reads rows of F32 whatever the precision is: roundings of them would send rows to other experts.
void Transformer::run_experts(const LayerWeights& layer, std::int64_t n) {
  const ModelConfig& config = model_->config();
  const Kernels& loops = kernels();
  Stopwatch watch;
  for_each_row(threads_, n, [&](std::int64_t row) {
    float* const normed = branch_.floats() + row * config.width;
    loops.rms_norm(residual_.floats() + row * config.width, layer.mlp_norm.data(), config.width,
                   config.norm_epsilon, normed);
    if (!rounded()) return;
    loops.to_bf16(normed, config.width,
                  reinterpret_cast<std::uint16_t*>(normed_.data()) + row * config.width);
  });
  watch.lap(times_.other);
  project(*layer.router, branch_.data(), n, StoreSink(routed_.floats(), config.experts, layer.router_bias));
  routing_.choose(routed_.floats(), n);
  const std::byte* const rows = rounded() ? normed_.data() : branch_.data();
  for (std::int64_t e = 0; e < config.experts; ++e) {
    const auto visits = routing_.of(e);
    if (!visits.empty())
      run_expert(layer.experts[static_cast<std::size_t>(e)], visits, rows,
                 config.residual_scale * config.expert_scale);
  }
  if (layer.shared.down) run_expert(layer.shared, visit_shared(layer, n), rows, config.residual_scale);
  watch.lap(times_.projections);
}

std::span<const Routing::Visit> Transformer::visit_shared(const LayerWeights& layer, std::int64_t n) {
  const std::int64_t width = model_->config().width;
  for_each_row(threads_, n, [&](std::int64_t row) {
    Routing::Visit& visit = shared_visits_[static_cast<std::size_t>(row)];
    visit = {static_cast<std::int32_t>(row), 1};
    if (layer.shared_gate.empty()) return;
    const float* const x = branch_.floats() + row * width;
    float logit = 0;
    for (std::int64_t i = 0; i < width; ++i) logit += x[i] * layer.shared_gate[static_cast<std::size_t>(i)];
    visit.weight = 1 / (1 + std::exp(-logit));
  });
  return std::span(shared_visits_).first(static_cast<std::size_t>(n));
}

/// Of its rows, those of a chunk are multiplied in blocks of their own: the bits do not depend on how a prompt is cut.
void Transformer::run_expert(const Expert& expert, std::span<const Routing::Visit> visits,
                             const std::byte* rows, float scale) {
  const ModelConfig& config = model_->config();
  const std::size_t row_bytes = bytes(1, config.width, rounded() ? sizeof(std::uint16_t) : sizeof(float));
  const auto n = static_cast<std::int64_t>(visits.size());
  for_each_row(threads_, n, [&](std::int64_t i) {
    auto from = static_cast<std::size_t>(visits[static_cast<std::size_t>(i)].row);
    if (HEADWATER_SABOTAGE("runtime.experts.row_in_8_bits")) from &= 0xFF;
    std::memcpy(gathered_.data() + static_cast<std::size_t>(i) * row_bytes, rows + from * row_bytes,
                row_bytes);
  });
  const std::int64_t chunk = session().options().chunk;
  expert_blocks_.clear();
  for (std::int64_t first = 0; first < n && !few_;) {
    const std::int64_t of_chunk = visits[static_cast<std::size_t>(first)].row / chunk;
    std::int64_t end = first;
    while (end < n && visits[static_cast<std::size_t>(end)].row / chunk == of_chunk) ++end;
    cut_into_blocks(end - first, end - first, expert_blocks_, first);
    first = end;
  }
  std::swap(blocks_, expert_blocks_);
  project(*expert.gate_up, gathered_.data(), n,
          GateSink(config.gate, hidden_.data(), expert.down->depth(), expert.gate_up_bias, rounded()));
  project(*expert.down, hidden_.data(), n,
          VisitSink(residual_.floats(), config.width, visits, expert.down_bias, scale));
  std::swap(blocks_, expert_blocks_);
}

void Transformer::run_layer(std::int64_t index, std::int64_t n) {
  const ModelConfig& config = model_->config();
  std::int64_t read = index;
  if (HEADWATER_SABOTAGE("runtime.layers.wrap_at_32")) read %= 32;
  const LayerWeights& layer = model_->layers()[static_cast<std::size_t>(read)];
  const std::int64_t before =
      HEADWATER_SABOTAGE("runtime.parts.specs_of_the_whole") ? 0 : model_->part().first;
  const LayerSpec& spec = config.layer_specs[static_cast<std::size_t>(before + index)];
  show(LayerView::Stage::input, index, n);
  if (config.parallel) run_gate(layer, layer.attention_norm, n);  // before attention adds to the rows
  Stopwatch watch;
  norm(residual_.floats(), layer.attention_norm, n);
  watch.lap(times_.other);
  spec.recurrent ? run_recurrent(layer, index, n) : run_attention(layer, spec, index, n);
  show(LayerView::Stage::middle, index, n);
  layer.experts.empty() ? run_feed_forward(layer, n) : run_experts(layer, n);
  show(LayerView::Stage::output, index, n);
}

void Transformer::run_attention(const LayerWeights& layer, const LayerSpec& spec, std::int64_t index,
                                std::int64_t n) {
  project_heads(layer, spec, n);
  Stopwatch watch;
  const double selected = selection_seconds();
  attend(index, n);
  watch.lap(times_.attention);
  const double spent = selection_seconds() - selected;
  times_.attention -= spent;
  times_.selection += spent;
  times_.selection_apart = session().stage_seconds().selection >= 0;
  if (model_->config().gated_attention) gate_attended(n);
  add_projected(*layer.output, attended_.data(), n, layer.output_bias, layer.attention_after_norm);
}

/// attended_ times a sigmoid of the gate, which stands behind the values.
void Transformer::gate_attended(std::int64_t n) {
  const ModelConfig& config = model_->config();
  const Kernels& loops = kernels();
  const std::int64_t width = config.heads * config.d_value;
  const Rows gates = rows_at(qkv_width_ - width, width);
  Stopwatch watch;
  for_each_row(threads_, n, [&](std::int64_t row) {
    constexpr std::int64_t kRun = 32;
    float gate[kRun];
    float rows[kRun];
    const auto wide = [](const std::uint16_t* from, std::int64_t count, float* to) {
      for (std::int64_t i = 0; i < count; ++i) to[i] = std::bit_cast<float>(std::uint32_t{from[i]} << 16U);
    };
    for (std::int64_t first = 0; first < width; first += kRun) {
      const std::int64_t count = std::min(kRun, width - first);
      const std::int64_t at = row * qkv_width_ + first;
      if (gates.type == DType::bf16) {
        wide(static_cast<const std::uint16_t*>(gates.data) + at, count, gate);
      } else {
        std::copy_n(static_cast<const float*>(gates.data) + at, count, gate);
      }
      if (!rounded()) {
        loops.sigmoid_gate(gate, count, attended_.floats() + row * width + first);
        continue;
      }
      auto* const narrow = reinterpret_cast<std::uint16_t*>(attended_.data()) + row * width + first;
      wide(narrow, count, rows);
      loops.sigmoid_gate(gate, count, rows);
      loops.to_bf16(rows, count, narrow);
    }
  });
  watch.lap(times_.other);
}

float* Transformer::state_of(std::int64_t layer, std::int64_t row) const {
  Session& session = *active_[few_ ? static_cast<std::size_t>(row) : 0];
  return dynamic_cast<RecurrentSession&>(session).states() +
         place_of(layer) * model_->config().delta.state_floats();
}

void Transformer::run_recurrent(const LayerWeights& layer, std::int64_t index, std::int64_t n) {
  const ModelConfig& config = model_->config();
  const DeltaShape& delta = config.delta;
  const Kernels& loops = kernels();
  const std::int64_t inner = delta.value_heads * delta.d;
  const std::int64_t channels = delta.channels();
  const std::int64_t width = layer.qkv->width();
  Stopwatch watch;
  project(*layer.qkv, normed_.data(), n, StoreSink(delta_.floats(), width, {}));
  watch.lap(times_.projections);
  for (std::int64_t row = 0; row < (few_ ? n : 1); ++row)
    (void)state_of(index, row);  // no fork's from now on
  convolve(layer, index, n);
  apply_delta_rule(index, n);
  for_each_row(threads_, n, [&](std::int64_t row) {
    const float* const gate = delta_.floats() + row * width + channels;
    float* const out = mixed_.floats() + row * channels + channels - inner;
    for (std::int64_t h = 0; h < delta.value_heads; ++h)
      loops.rms_norm(out + h * delta.d, layer.delta.norm.data(), delta.d, config.norm_epsilon,
                     out + h * delta.d);
    loops.silu_gate(gate, inner, out);
    if (rounded()) {
      loops.to_bf16(out, inner, reinterpret_cast<std::uint16_t*>(attended_.data()) + row * inner);
    } else {
      std::copy_n(out, inner, attended_.floats() + row * inner);
    }
  });
  watch.lap(times_.attention);
  add_projected(*layer.output, attended_.data(), n, {}, {});
}

/// From delta_ to mixed_: the convolution of a row and those before it, norms of queries and keys; in delta_ beta and step become
/// what the delta rule takes. Then the newest rows are kept.
void Transformer::convolve(const LayerWeights& layer, std::int64_t index, std::int64_t n) {
  const DeltaShape& delta = model_->config().delta;
  const Kernels& loops = kernels();
  const std::int64_t channels = delta.channels();
  const std::int64_t width = layer.qkv->width();
  const std::int64_t before = delta.taps - 1;
  const float epsilon = 1e-6F / static_cast<float>(delta.d);
  for_each_row(threads_, n, [&](std::int64_t row) {
    const float* const kept = state_of(index, row);
    std::array<const float*, DeltaShape::kMostTaps> rows{};
    for (std::int64_t t = 0; t <= before; ++t) {
      const std::int64_t back = before - t;
      const std::int64_t own = (few_ ? 0 : row) - back;  // below 0: of an earlier step of the conversation
      rows.at(static_cast<std::size_t>(t)) =
          own < 0 ? kept + (before + own) * channels : delta_.floats() + (row - back) * width;
    }
    float* const mixed = mixed_.floats() + row * channels;
    loops.convolve_silu(rows.data(), layer.delta.convolution.data(), delta.taps, channels, mixed);
    for (std::int64_t h = 0; h < 2 * delta.key_heads; ++h) {
      const std::vector<float>& weight = h < delta.key_heads ? query_scale_ : key_scale_;
      loops.rms_norm(mixed + h * delta.d, weight.data(), delta.d, epsilon, mixed + h * delta.d);
    }
    float* const beta = delta_.floats() + row * width + width - 2 * delta.value_heads;
    float* const step = beta + delta.value_heads;
    for (std::int64_t h = 0; h < delta.value_heads; ++h) {
      const auto head = static_cast<std::size_t>(h);
      const double x = double{step[h]} + double{layer.delta.step_bias[head]};
      const double softplus = std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
      step[h] = static_cast<float>(std::exp(double{layer.delta.rate[head]} * softplus));
      beta[h] = static_cast<float>(1 / (1 + std::exp(-double{beta[h]})));
    }
  });
  const auto keep = [&](float* kept, std::int64_t first, std::int64_t count) {
    std::memmove(kept, kept + std::min(count, before) * channels,
                 bytes(std::max(before - count, std::int64_t{0}), channels));
    for (std::int64_t t = std::max(std::int64_t{0}, before - count); t < before; ++t)
      std::copy_n(delta_.floats() + (first + count - before + t) * width, channels, kept + t * channels);
  };
  if (!few_) return keep(state_of(index, 0), 0, n);
  for (std::int64_t row = 0; row < n; ++row) keep(state_of(index, row), row, 1);
}

/// In mixed_, values become what is read. Tokens of a conversation go one after the other; heads, and columns of their matrices, do
/// not depend on each other.
void Transformer::apply_delta_rule(std::int64_t index, std::int64_t n) {
  const DeltaShape& delta = model_->config().delta;
  const Kernels& loops = kernels();
  const std::int64_t channels = delta.channels();
  const std::int64_t width = channels + delta.value_heads * (delta.d + 2);
  const std::int64_t columns = delta.d % kWideDeltaColumns == 0 ? kWideDeltaColumns : kDeltaColumns;
  const std::int64_t blocks = delta.value_heads * delta.d / columns;
  const std::int64_t sequences = few_ ? n : 1;
  parallel_tasks(threads_, sequences * blocks, [&](std::int64_t task, int) {
    const std::int64_t block = task % blocks;
    const std::int64_t first = few_ ? task / blocks : 0;
    const std::int64_t end = few_ ? first + 1 : n;
    const std::int64_t head = block * columns / delta.d;
    float* const matrix = state_of(index, first) + (delta.taps - 1) * channels + block * delta.d * columns;
    for (std::int64_t row = first; row < end; ++row) {
      float* const mixed = mixed_.floats() + row * channels;
      const float* const beta = delta_.floats() + row * width + width - 2 * delta.value_heads;
      const float* const query = mixed + head % delta.key_heads * delta.d;
      loops.delta_step(
          matrix, delta.d, columns,
          {query + delta.key_heads * delta.d, query, mixed + 2 * delta.key_heads * delta.d + block * columns,
           beta[delta.value_heads + head], beta[head]});
    }
  });
}

void Transformer::logits(std::int64_t first, std::int64_t count, std::span<float> out) {
  const ModelConfig& config = model_->config();
  if (first < 0 || count < 1 || count > step_rows_ - first ||
      out.size() < static_cast<std::size_t>(count) * static_cast<std::size_t>(config.vocabulary)) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("logits of tokens [{}, {}) into {} floats; allowed: tokens of the last step of {}, and a "
                    "vocabulary of {} for each",
                    first, first + count, out.size(), step_rows_, config.vocabulary));
  }
  few_ = count == 1;
  if (head_is_far()) {
    ask_far(first, count);
    relay_->collect(out.first(static_cast<std::size_t>(count * config.vocabulary)));
    return;
  }
  project_logits(first, count, out.data());
}

void Transformer::ask_far(std::int64_t first, std::int64_t count) {
  PartCall call;
  call.kind = PartCall::Kind::logits;
  call.first = first;
  call.count = count;
  call.few = few_;
  relay_->pass(call, {});
}

void Transformer::ask_logits(std::int64_t count) {
  if (count < 1 || count > step_rows_ || count > kMostSlots) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("logits of the last {} tokens are asked for; allowed: 1 .. {}", count,
                            std::min<std::int64_t>(step_rows_, kMostSlots)));
  }
  few_ = true;
  const std::int64_t first = step_rows_ - count;
  if (head_is_far()) {
    ask_far(first, count);
    return;
  }
  const std::int64_t vocabulary = model_->config().vocabulary;
  std::vector<float> known = std::exchange(answer_, {});  // its room
  known.resize(static_cast<std::size_t>(count * vocabulary));
  project_logits(first, count, known.data());
  asked_.push_back(std::move(known));
}

void Transformer::take_logits(std::span<float* const> outs) {
  const auto width = static_cast<std::size_t>(model_->config().vocabulary);
  if (head_is_far()) {
    answer_.resize(outs.size() * width);
    relay_->collect(answer_);
  } else {
    if (asked_.empty() || asked_.front().size() != outs.size() * width) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("logits of {} tokens are taken; allowed: those asked for first, {}",
                              outs.size(), asked_.empty() ? 0 : asked_.front().size() / width));
    }
    answer_ = std::move(asked_.front());
    asked_.pop_front();
  }
  for (std::size_t i = 0; i < outs.size(); ++i) std::copy_n(answer_.data() + i * width, width, outs[i]);
}

/// Scale and soft cap.
void Transformer::finish_logits(std::int64_t count, float* out) const {
  const ModelConfig& config = model_->config();
  if (config.logit_scale == 1 && config.logit_softcap == 0) return;
  const auto cap = static_cast<float>(config.logit_softcap);
  for_each_row(threads_, count, [&](std::int64_t row) {
    const std::span logits(out + row * config.vocabulary, static_cast<std::size_t>(config.vocabulary));
    for (float& logit : logits) {
      logit *= config.logit_scale;
      if (cap > 0) logit = cap * std::tanh(logit / cap);
    }
  });
}

void Transformer::project_logits(std::int64_t first, std::int64_t count, float* out) {
  const ModelConfig& config = model_->config();
  Stopwatch watch;
  norm(residual_.floats() + first * config.width, model_->final_norm(), count);
  watch.lap(times_.other);
  blocks_.clear();
  cut_into_blocks(count, session().options().chunk, blocks_);
  project(model_->head(), normed_.data(), count, StoreSink(out, config.vocabulary, {}));
  watch.lap(times_.projections);
  finish_logits(count, out);
}

}  // namespace headwater::runtime
