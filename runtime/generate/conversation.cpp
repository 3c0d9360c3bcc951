#include "runtime/generate/conversation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "headwater/error.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::runtime {
namespace {

std::uint64_t triangle(std::int64_t n) {
  const auto count = static_cast<std::uint64_t>(n);
  if (HEADWATER_SABOTAGE("runtime.pairs.in_32_bits")) {
    const auto narrow = static_cast<std::uint32_t>(n);
    return static_cast<std::uint32_t>(narrow * (narrow + 1)) / 2;
  }
  return count * (count + 1) / 2;
}

/// Pairs of the first n tokens where each sees `window` tokens, itself among them; 0: all before it.
std::uint64_t pairs_of(std::int64_t n, std::int64_t window) {
  if (window == 0 || n <= window) return triangle(n);
  return triangle(window) + static_cast<std::uint64_t>(n - window) * static_cast<std::uint64_t>(window);
}

std::string step_text(const Step& step) {
  if (step.kind == Step::Kind::decode) return fmt::format("d{}", step.n);
  return step.turn_length == 0 ? fmt::format("p{}", step.n) : fmt::format("p{}:{}", step.n, step.turn_length);
}

/// Shows a transformer's layers to an observer of this scope: a step that throws must not leave it behind.
class Observation {
 public:
  Observation(Transformer& transformer, LayerObserver observer) : transformer_(transformer) {
    transformer_.set_observer(std::move(observer));
  }
  ~Observation() { transformer_.set_observer({}); }
  Observation(const Observation&) = delete;
  Observation& operator=(const Observation&) = delete;

 private:
  Transformer& transformer_;
};

}  // namespace

Conversation::Conversation(Transformer& transformer, std::int64_t dense_tail, int slot)
    : transformer_(transformer),
      dense_tail_(dense_tail),
      slot_(slot),
      logits_(static_cast<std::size_t>(transformer.model().config().vocabulary)) {}

Conversation::Conversation(Transformer& transformer, const Conversation& from)
    : transformer_(transformer),
      dense_tail_(from.dense_tail_),
      slot_(0),
      logits_(from.logits_),
      known_(from.known_),
      record_(from.record_),
      before_(HEADWATER_SABOTAGE("runtime.fork.begins_with_nothing") ? Before{} : now()) {}

/// The session holds tokens that nothing is known of here.
void Conversation::begin_anew() {
  known_ = false;
  record_ = {};
  turn_ = {};
  before_ = now();
}

void Conversation::reset() {
  transformer_.reset(slot_);
  begin_anew();
}

void Conversation::truncate(std::int64_t tokens) {
  const bool all = tokens == this->tokens();
  transformer_.truncate(tokens, slot_);
  if (!all && !HEADWATER_SABOTAGE("runtime.truncate.logits_stay")) begin_anew();
}

/// A turn of at most one chunk is dense anyway, and so is one below D (STATE-3). What goes on with a sparse turn is sparse
/// however short it is, unless a memory set has room for all before it.
std::int64_t Conversation::tail_of(std::int64_t n) const {
  const EffectiveOptions& options = session().options();
  if (options.sparse_turn(n, false)) return std::min(dense_tail_, n - 1);
  const bool sparse = session().state() == SessionState::prefilling && tokens() > options.memory() &&
                      session().plan().back().mode == ChunkMode::sparse;
  return sparse && !HEADWATER_SABOTAGE("runtime.tail.none_of_a_short_rest") ? std::min(dense_tail_, n) : 0;
}

void Conversation::count_step() {
  const Session& session = this->session();
  const auto pairs = [](const Chunk& chunk, std::int64_t before) {
    const std::int64_t n = chunk.end - chunk.begin;
    return triangle(n) + static_cast<std::uint64_t>(n) * static_cast<std::uint64_t>(before);
  };
  std::uint64_t of_layer = 0;
  for (const Chunk& chunk : session.plan()) {
    of_layer += pairs(chunk, chunk.mode == ChunkMode::sparse ? session.memory_count(chunk) : chunk.begin);
  }
  const std::vector<LayerSpec>& specs = transformer_.model().config().layer_specs;
  const std::vector<std::int64_t>& dense_layers = transformer_.options().dense_layers;
  const std::int64_t begin = session.plan().front().begin;
  const std::int64_t end = session.tokens();
  std::uint64_t dense = 0;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].recurrent) continue;
    const std::int64_t window = specs[i].window;
    dense += pairs_of(end, window);
    const bool exact = window > 0 || std::ranges::binary_search(dense_layers, static_cast<std::int64_t>(i));
    record_.computed += exact ? pairs_of(end, window) - pairs_of(begin, window) : of_layer;
  }
  const auto layers =
      specs.size() - static_cast<std::uint64_t>(transformer_.model().config().recurrent_layers());
  record_.pairs.computed = (record_.computed + layers / 2) / layers;
  record_.pairs.dense = (dense + layers / 2) / layers;
}

void Conversation::note(const Step& step) {
  if (!record_.steps.empty()) record_.steps += ',';
  record_.steps += step_text(step);
}

std::string Conversation::steps() const {
  std::string text = record_.steps;
  for (std::int64_t i = 0; i < record_.appended; ++i) {
    if (!text.empty() || HEADWATER_SABOTAGE("runtime.steps.comma_first")) text += ',';
    text += step_text(Step::decode());
  }
  return text;
}

void Conversation::feed(std::span<const std::int32_t> ids, const Progress& progress) {
  feed_ahead(ids, progress);
  Conversation* const self = this;
  take_logits({&self, 1});
}

void Conversation::begin_turn(std::span<const std::int32_t> ids, std::int64_t tail) {
  const auto n = static_cast<std::int64_t>(ids.size());
  const std::int64_t capacity = session().shape().capacity;
  if (n == 0) throw Error(ErrorCode::invalid_argument, "a turn has 0 tokens; allowed: 1 or more");
  if (n > capacity - tokens()) {
    throw Error(ErrorCode::capacity_exceeded,
                fmt::format("a turn of {} tokens after {} does not fit; allowed: {} tokens in all", n,
                            tokens(), capacity));
  }
  before_ = now();
  for (; record_.appended > 0; --record_.appended) note(Step::decode());
  turn_ = {ids, n - std::min(tail, n), 0, session().state() != SessionState::prefilling};
}

bool Conversation::step(std::int64_t most) {
  const auto n = static_cast<std::int64_t>(turn_.ids.size());
  const std::int64_t done = turn_.done;
  bool tail = done >= turn_.prefill;
  // The part of a tail that does not fit into its first step.
  if (tail && done > turn_.prefill && HEADWATER_SABOTAGE("runtime.tail.rest_is_prefill")) tail = false;
  const std::int64_t fits = tail ? std::min(transformer_.max_step(), n - done)
                                 : transformer_.prefill_step(done, turn_.prefill, turn_.opens);
  const std::int64_t count = std::min(fits, most);
  // A turn that one call makes says its own length; one that goes on said it (STATE-1).
  bool opens = done == 0 && turn_.opens;
  if (HEADWATER_SABOTAGE("runtime.turn.length_said_twice")) opens = done == 0;
  const std::int64_t length = opens && count < turn_.prefill ? turn_.prefill : 0;
  const Step step = tail ? Step::decode(count) : Step::prefill(count, length);
  const auto ids = turn_.ids.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(count));
  transformer_.run(step, ids, slot_);
  count_step();
  note(step);
  turn_.done += count;
  if (turn_.done < n) return false;
  transformer_.ask_logits(1);
  return true;
}

void Conversation::feed_ahead(std::span<const std::int32_t> ids, const Progress& progress) {
  const auto n = static_cast<std::int64_t>(ids.size());
  begin_turn(ids, tail_of(n));
  const auto layers = std::ssize(transformer_.model().layers());
  const Observation observation(transformer_, [&](const LayerView& view) {
    if (observer_) observer_(view);
    if (!progress || view.stage != LayerView::Stage::output) return;
    const double layers_done = static_cast<double>(view.layer + 1) / static_cast<double>(layers);
    progress((static_cast<double>(turn_.done) + static_cast<double>(view.n) * layers_done) /
             static_cast<double>(n));
  });
  while (!step(n)) {
  }
}

std::unique_ptr<Session> Conversation::exchange(std::unique_ptr<Session> session) {
  std::unique_ptr<Session> other = transformer_.exchange(slot_, std::move(session));
  begin_anew();
  return other;
}

void Conversation::recover() {
  Session& session = transformer_.session(slot_);
  const auto done = [](const auto& action) {
    try {
      action();
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  (void)done([&] { session.abort(); });  // refused where no step is open
  if (!done([&] { transformer_.truncate(before_.tokens, slot_); })) {
    reset();
    return;
  }
  record_.pairs = before_.pairs;
  record_.computed = before_.computed;
  record_.steps.resize(before_.steps);
  record_.appended = before_.appended;
}

void Conversation::append(std::int32_t id) {
  Conversation* const self = this;
  append({&self, 1}, {&id, 1});
}

void Conversation::append(std::span<Conversation* const> talks, std::span<const std::int32_t> ids) {
  append_ahead(talks, ids);
  take_logits(talks);
}

void Conversation::take_logits(std::span<Conversation* const> talks) {
  std::array<float*, kMostSlots> logits{};
  for (std::size_t i = 0; i < talks.size(); ++i) logits.at(i) = talks[i]->logits_.data();
  talks.front()->transformer_.take_logits(std::span(logits).first(talks.size()));
  for (Conversation* const talk : talks) talk->known_ = true;
}

void Conversation::append_ahead(std::span<Conversation* const> talks, std::span<const std::int32_t> ids) {
  if (talks.empty() || talks.size() > kMostSlots || talks.size() != ids.size()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} ids for {} conversations; allowed: one each, for 1 .. {}", ids.size(),
                            talks.size(), kMostSlots));
  }
  Transformer& transformer = talks.front()->transformer_;
  std::array<SlotToken, kMostSlots> tokens;
  for (std::size_t i = 0; i < talks.size(); ++i) {
    if (&talks[i]->transformer_ != &transformer) {
      throw Error(ErrorCode::invalid_argument,
                  "conversations of several transformers; allowed: slots of one");
    }
    tokens[i] = {talks[i]->slot_, ids[i]};
    talks[i]->before_ = talks[i]->now();
  }
  transformer.decode(std::span(tokens).first(talks.size()));
  for (Conversation* const talk : talks) {
    talk->count_step();
    ++talk->record_.appended;
  }
  transformer.ask_logits(static_cast<std::int64_t>(talks.size()));
}

}  // namespace headwater::runtime
