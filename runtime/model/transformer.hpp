#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "headwater/engine.hpp"
#include "headwater/session.hpp"
#include "runtime/model/aligned_buffer.hpp"
#include "runtime/model/model.hpp"
#include "runtime/model/relay.hpp"
#include "runtime/model/routing.hpp"

namespace headwater::runtime {

struct TransformerOptions {
  std::string engine;  ///< empty: HEADWATER_ENGINE, or the library's default
  Options attention;  ///< batch, chunk, memory set, threads; `scale` and what belongs to the model stay unset
  /// Of the stored keys and values. Where it is BF16 and so are the products, queries are rounded to it, too: engines
  /// multiply three rows of that type faster than any other.
  DType cache_type = DType::f16;
  std::int64_t capacity = 0;     ///< most tokens of a conversation
  int slots = 1;                 ///< conversations that are held at once, 1 .. kMostSlots
  std::shared_ptr<Relay> relay;  ///< to the other parts, where the model is a part of one
};

/// What a session has in place of its transformer's options for prompts.
struct PromptRule {
  bool dense = false;                 ///< dense prefill
  std::optional<Select> select = {};  ///< which tokens a memory set holds
  std::optional<std::int64_t> memory =
      {};  ///< M, tokens of a memory set, its newest ones among them, 1 .. 2^31 - 1
  friend bool operator==(const PromptRule&, const PromptRule&) = default;
};

/// Rows that are decoded together at most.
inline constexpr int kMostSlots = static_cast<int>(Projection::kFewRows);

/// A generated token of the conversation in a slot.
struct SlotToken {
  int slot = 0;
  std::int32_t id = 0;
};

/// Seconds of the steps, by phase.
struct PhaseTimes {
  double projections = 0;
  double attention = 0;          ///< Session::attend, selection left out where the engine says it
  double selection = 0;          ///< memory sets and scores (StageSeconds)
  bool selection_apart = false;  ///< the engine says it; else it is a part of attention
  double other = 0;              ///< embedding, norms, rotation, residual stream
  [[nodiscard]] double total() const { return projections + attention + selection + other; }
};

/// What an observer is shown of one layer of a step. The views are valid during the call only.
struct LayerView {
  enum class Stage : std::uint8_t {
    input,      ///< before the layer: residual
    attention,  ///< before attend: q, k, v as they go in, normed and rotated
    middle,     ///< after attention and its output projection: residual
    output,     ///< after the layer: residual
  };
  Stage stage = Stage::input;
  std::int64_t layer = 0;
  std::int64_t n = 0;
  const float* residual = nullptr;  ///< [n][width]
  Rows q, k, v;
};
using LayerObserver = std::function<void(const LayerView&)>;

/// A model around a session for each slot: tokens in, logits out. The residual stream, norms and rotation are F32; products
/// over several rows take operands of the model's precision, or bytes, in row blocks aligned to the chunks; products of decode steps
/// of one token and of one row's logits read the weights as stored and are F32, with activations of 16 bits beside
/// quantised weights. All memory but that of stored rows is taken when it is made. Used by one thread at a time.
class Transformer {
 public:
  /// Errors: those of Engine::open; invalid_argument for other numbers of slots.
  Transformer(std::shared_ptr<const Model> model, const TransformerOptions& options);
  /// A transformer of one slot for the same model, by itself, whose session is a fork of the one in `slot`. Errors: those of
  /// Session::fork(); invalid_argument where the model has other parts, with sessions of their own.
  Transformer(Transformer& from, int slot);

  /// Runs one step: ids.size() = step.n <= max_step(). Errors: those of Session::begin; invalid_argument for an id
  /// outside the vocabulary, and for more than max_step() tokens. After an exception from inside only reset() is
  /// legal (STATE-5).
  void run(const Step& step, std::span<const std::int32_t> ids, int slot = 0);
  /// A decode step of one token for each of these slots, which are tokens 0, 1, ... of the step: the weights are read once.
  /// Every slot has the bits that run() gives it alone. Errors: as of run(); invalid_argument for no token, a slot that is
  /// not there, and one that comes twice. Where a session refuses the step, it is open in no slot if the engine has
  /// Session::abort().
  void decode(std::span<const SlotToken> tokens);
  /// Logits of tokens [first, first + count) of the last step: count x vocabulary. One row is computed in F32. Errors:
  /// invalid_argument for other tokens, where the step did not finish, and where `out` is shorter.
  void logits(std::int64_t first, std::int64_t count, std::span<float> out);
  /// logits() in two halves, so that steps of other slots come between. ask_logits(): those of the last `count` tokens of the
  /// last step, in F32, 1 .. kMostSlots. take_logits(): waits for those that were asked for first and not taken, each to a row
  /// of `vocabulary` floats. Errors: invalid_argument for other numbers of tokens.
  void ask_logits(std::int64_t count);
  void take_logits(std::span<float* const> outs);
  /// To the other parts; null where there are none.
  [[nodiscard]] Relay* relay() const { return relay_.get(); }
  void reset(int slot = 0);
  /// As Session::truncate, in all parts. A step that is open here ended before it was passed on.
  void truncate(std::int64_t tokens, int slot = 0);
  /// An empty session like those of the slots, but for its rule. Of any thread. Errors: those of Engine::open();
  /// invalid_argument for a rule or a memory where prefill is dense.
  [[nodiscard]] std::unique_ptr<Session> open_session(const PromptRule& rule = {}) const;
  /// The same with what headwater::save() wrote of one. Errors: those of headwater::load().
  [[nodiscard]] std::unique_ptr<Session> load_session(const std::string& path, const std::string& fingerprint,
                                                      const PromptRule& rule) const;
  /// Puts a session in a slot, of open_session() or a fork of one, and returns the one that was there. Errors:
  /// invalid_argument where the model has other parts, with sessions of their own.
  std::unique_ptr<Session> exchange(int slot, std::unique_ptr<Session> session);
  /// On a part behind the first one: does what that did. `rows`: the residual stream that the part before passed on, where
  /// it passed any. Errors: invalid_argument where it is no such part, or the rows do not fit the call; those of the call.
  void repeat(const PartCall& call, std::span<const float> rows);

  [[nodiscard]] int slots() const { return static_cast<int>(sessions_.size()); }
  /// Most tokens of one step: the effective batch, or the capacity where that is less.
  [[nodiscard]] std::int64_t max_step() const { return max_step_; }
  /// Tokens of the next prefill step of a prompt of n tokens, of which `done` went in: a batch, or, where parts of the
  /// model stream, a chunk of it, if the bits are the same: in sparse turns (PLAN-2), but not where a layer is dense
  /// (STATE-7). `opens`: the prompt opened its turn.
  [[nodiscard]] std::int64_t prefill_step(std::int64_t done, std::int64_t n, bool opens) const;
  /// Those of the session, but for all layers of the model, of which it may have a part.
  [[nodiscard]] const EffectiveOptions& options() const { return options_; }
  [[nodiscard]] Session& session(int slot = 0) { return *sessions_[static_cast<std::size_t>(slot)]; }
  [[nodiscard]] const Session& session(int slot = 0) const {
    return *sessions_[static_cast<std::size_t>(slot)];
  }
  /// Layers before this one of its kind, attention or recurrent: its number in a session, or among the states.
  [[nodiscard]] std::int64_t place_of(std::int64_t layer) const;
  [[nodiscard]] const Engine& engine() const { return engine_; }
  [[nodiscard]] const Model& model() const { return *model_; }
  [[nodiscard]] const PhaseTimes& times() const { return times_; }
  void clear_times() { times_ = {}; }
  [[nodiscard]] std::uint64_t workspace_bytes() const;
  void set_observer(LayerObserver observer) { observer_ = std::move(observer); }

 private:
  class Stopwatch;
  class HeadSink;
  void place_layers();
  /// Memory for steps of the sessions that are there.
  void take_workspaces();
  /// Of the buffers with padding. Rows of decode steps of one token are F32: each takes the room of two of BF16.
  [[nodiscard]] std::int64_t workspace_rows() const {
    return std::max<std::int64_t>(max_step_ + kRowPadding, std::int64_t{2} * slots());
  }
  /// What blocks read after a step's last row is never used, but must not be uninitialised.
  void initialise_rows(std::int64_t rows);
  void describe_attention(Options& attention) const;
  /// Of states of recurrent layers, 0 where there are none.
  [[nodiscard]] std::size_t state_floats() const;
  [[nodiscard]] Options session_options(const PromptRule& rule) const;
  /// Where other parts of the model have sessions of their own, which nobody asks here.
  void refuse_parts(const char* what) const;
  void check_id(std::int32_t id) const;
  void begin(const Step& step, int slot);
  void begin(std::span<const SlotToken> tokens);
  /// The steps of active_, which have begun.
  void abort_active();
  /// The step of the sessions in active_, which are open: from ids, or from the rows of the part before.
  void run_layers(std::span<const std::int32_t> ids, std::span<const float> rows = {});
  /// Hands the last step on.
  void pass(PartCall call);
  void embed(std::span<const std::int32_t> ids);
  /// Floats of a row of rotation_: cosines and sines of every rotation.
  [[nodiscard]] std::int64_t rotation_width() const;
  void tabulate_rotations();
  [[nodiscard]] float temperature(std::int64_t row) const;
  void run_layer(std::int64_t layer, std::int64_t n);
  /// Rows of the residual stream to normed_; without weights they are rounded alone.
  void norm(const float* from, const std::vector<float>& weight, std::int64_t n);
  /// The same of rows of so many elements that begin `apart` floats from each other.
  void norm(const float* from, std::int64_t apart, const std::vector<float>& weight, std::int64_t elements,
            AlignedBuffer& to, std::int64_t n);
  /// x may be other rows afterwards (Projection::multiply).
  void project(const Projection& projection, void* x, std::int64_t n, const TileSink& sink);
  void add_projected(const Projection& projection, void* x, std::int64_t n, const std::vector<float>& bias,
                     const std::vector<float>& after_norm);
  /// The first half of the feed-forward part, to hidden_.
  void run_gate(const LayerWeights& layer, const std::vector<float>& norm_weight, std::int64_t n);
  void run_feed_forward(const LayerWeights& layer, std::int64_t n);
  void run_experts(const LayerWeights& layer, std::int64_t n);
  /// All rows, with the weights of the expert that they share; valid until the next call.
  std::span<const Routing::Visit> visit_shared(const LayerWeights& layer, std::int64_t n);
  /// `scale`: of all weights.
  void run_expert(const Expert& expert, std::span<const Routing::Visit> visits, const std::byte* rows,
                  float scale);
  /// Keys and values of latent rows, to their places beside the queries.
  void expand_latent(const LayerWeights& layer, std::int64_t n);
  void project_heads(const LayerWeights& layer, const LayerSpec& spec, std::int64_t n);
  /// From normed_ to the residual stream.
  void run_attention(const LayerWeights& layer, const LayerSpec& spec, std::int64_t index, std::int64_t n);
  void gate_attended(std::int64_t n);
  void run_recurrent(const LayerWeights& layer, std::int64_t index, std::int64_t n);
  /// The state of a recurrent layer of the row's conversation.
  [[nodiscard]] float* state_of(std::int64_t layer, std::int64_t row) const;
  void convolve(const LayerWeights& layer, std::int64_t index, std::int64_t n);
  void apply_delta_rule(std::int64_t index, std::int64_t n);
  void attend(std::int64_t layer, std::int64_t n);
  [[nodiscard]] double selection_seconds() const;
  /// Whether rows go through the layers in the model's precision, or as few rows of F32.
  [[nodiscard]] bool rounded() const { return !few_ && model_->precision() == Precision::bf16; }
  /// Whether the output head is another process's.
  [[nodiscard]] bool head_is_far() const { return relay_ && !model_->part().has_head(); }
  /// From row `first` of the residual stream on, as few_ says; relay_->collect() has them.
  void ask_far(std::int64_t first, std::int64_t count);
  void finish_logits(std::int64_t count, float* out) const;
  /// count x vocabulary floats to `out`.
  void project_logits(std::int64_t first, std::int64_t count, float* out);
  void show(LayerView::Stage stage, std::int64_t layer, std::int64_t n) const;
  /// Of queries, keys and values.
  [[nodiscard]] float* qkv_row(std::int64_t row) const { return qkv_.floats() + row * qkv_width_; }
  [[nodiscard]] std::uint16_t* rounded_row(std::int64_t row) const {
    return reinterpret_cast<std::uint16_t*>(narrow_.data()) + row * qkv_width_;
  }
  [[nodiscard]] Rows rows_at(std::int64_t column, std::int64_t width, std::int64_t row = 0) const;

  std::shared_ptr<const Model> model_;
  const Engine& engine_;
  Shape session_shape_;
  Options session_options_;
  std::vector<std::int64_t> places_;                // place_of()
  std::vector<std::unique_ptr<Session>> sessions_;  // of the slots
  std::vector<Session*> active_;                    // of the last step
  std::vector<SequenceCall> calls_;                 // decode(): of one layer
  std::vector<std::int32_t> ids_;                   // decode(): of its tokens
  std::vector<std::int64_t> positions_;             // of the last step's tokens
  int threads_ = 1;
  std::int64_t max_step_ = 0;
  std::int64_t qkv_width_ = 0;
  std::int64_t step_rows_ = 0;         // of the last step; 0 where it did not finish
  std::int64_t initialised_rows_ = 0;  // of the workspaces with padding
  bool few_ = false;                   // the rows of decode steps of one token: F32 throughout
  bool bf16_rows_ = false;             // queries, keys and values go to the engine as BF16
  bool heads_in_tiles_ = false;        // a head lies in one tile of a product
  std::vector<RowBlock> blocks_;
  std::shared_ptr<Relay> relay_;
  EffectiveOptions options_;
  std::vector<ProjectionScratch> scratch_;
  AlignedBuffer residual_;       // [n][width] F32
  AlignedBuffer normed_;         // [n + padding][width], precision or F32
  AlignedBuffer qkv_;            // [n][qkv_width] F32; of few rows where tiles go to narrow_
  AlignedBuffer narrow_;         // the same rounded to BF16, where attention multiplies that
  AlignedBuffer latent_;         // [n][latent and rotated elements] F32
  AlignedBuffer latent_normed_;  // [n + padding][latent], precision or F32
  AlignedBuffer expanded_;       // [n][what latent_up makes] F32
  AlignedBuffer attended_;  // [n + padding][heads * d_value], precision or F32; or heads of a recurrent layer
  AlignedBuffer delta_;     // [n][columns of a recurrent layer's qkv] F32
  // By rms_norm() x / sqrt(sum x^2 + 1e-6), of queries over sqrt(d), too: [d] of the same number.
  std::vector<float> query_scale_, key_scale_;
  AlignedBuffer mixed_;   // [n][its channels] F32, after the convolution; values become outputs
  AlignedBuffer hidden_;  // [n + padding][the widest feed-forward part], the same
  AlignedBuffer
      branch_;  // [n + padding][width] F32: what a layer adds, where that is normed; the router's rows
  AlignedBuffer routed_;    // [n][experts] F32: the router's logits
  AlignedBuffer gathered_;  // [n + padding][width], rows of one expert, as normed_
  Routing routing_;
  std::vector<Routing::Visit> shared_visits_;
  std::vector<RowBlock> expert_blocks_;   // of one expert
  AlignedBuffer rotation_;                // [n][rotations][cosines, sines] F32
  std::vector<float> answer_;             // logits for the first part, or from the last one
  std::deque<std::vector<float>> asked_;  // logits that are known here and not taken
  PhaseTimes times_;
  LayerObserver observer_;
};

}  // namespace headwater::runtime
