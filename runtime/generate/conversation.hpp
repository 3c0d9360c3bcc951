#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/model/transformer.hpp"

namespace headwater::runtime {

/// Query-key pairs per query head and layer: the mean over layers. Those of a layer with a window are those inside it.
struct Pairs {
  std::uint64_t computed =
      0;                    ///< on average over the layers that attend, of which some may be dense (STATE-7)
  std::uint64_t dense = 0;  ///< what dense causal attention over the same tokens takes
};

/// Turns of prompt and answer around a transformer: prompts go in by the chunk schedule, their last tokens and every
/// generated token by dense decode steps.
class Conversation {
 public:
  /// `dense_tail`: so many tokens at the end of a sparse turn become one decode step, which sees every token before it:
  /// the question at the end of a long prompt. 0 is the plain algorithm.
  /// It is the one in this slot of the transformer.
  Conversation(Transformer& transformer, std::int64_t dense_tail, int slot = 0);
  /// Goes on by itself, in slot 0 of `transformer`, from where `from` is; the transformer is a fork of from's, made when
  /// from was in the same place. The observer stays behind.
  Conversation(Transformer& transformer, const Conversation& from);

  /// Called from inside feed() with the share of the turn that is done, 0 .. 1; an exception from it ends the turn, and
  /// only reset() is legal then.
  using Progress = std::function<void(double share)>;
  /// Processes a turn of ids (at least one); logits() are then those after its last token. After a turn without a dense
  /// tail and before an append() it goes on with that turn, in its mode (STATE-3). Errors: those of Transformer::run;
  /// nothing is changed where the turn does not fit.
  void feed(std::span<const std::int32_t> ids, const Progress& progress = {});
  /// feed() that does not wait for the logits: steps in other slots may follow at once, so that parts of the model elsewhere
  /// have work. take_logits() is what waits.
  void feed_ahead(std::span<const std::int32_t> ids, const Progress& progress = {});
  /// feed_ahead() a step at a time, so that steps of other slots come between. `ids` stay where they are until the turn is in;
  /// its last `tail` tokens, all of them where it has fewer, become dense decode steps. Errors: those of feed(); then nothing is
  /// changed.
  void begin_turn(std::span<const std::int32_t> ids, std::int64_t tail);
  /// The next step of the turn, of at most `most` tokens. Whether the turn is in: then its logits are under way, for
  /// take_logits().
  [[nodiscard]] bool step(std::int64_t most);
  /// Goes on with another session of the transformer (Transformer::open_session(), or a fork), whose tokens count as no work of
  /// this conversation; the one before is returned.
  std::unique_ptr<Session> exchange(std::unique_ptr<Session> session);
  /// Of the turns that follow.
  void set_dense_tail(std::int64_t tokens) { dense_tail_ = tokens; }
  /// Shown every layer of the turns that follow, besides what feed() itself looks at.
  void set_layer_observer(LayerObserver observer) { observer_ = std::move(observer); }
  /// Appends one generated token by a decode step; logits() are then those after it. Errors: as of Transformer::run.
  void append(std::int32_t id);
  /// After an exception from feed() or append(): back to what was before it where the session can be truncated to that
  /// (STATE-9, STATE-10), else reset().
  void recover();
  /// append() of an id each to conversations in different slots of one transformer, in one decode step.
  static void append(std::span<Conversation* const> talks, std::span<const std::int32_t> ids);
  /// append() that does not wait, as feed_ahead().
  static void append_ahead(std::span<Conversation* const> talks, std::span<const std::int32_t> ids);
  /// Waits for the logits of one feed_ahead(), or of the same conversations of one append_ahead(): in the order of these
  /// calls on one transformer. Errors: those of Transformer::take_logits.
  static void take_logits(std::span<Conversation* const> talks);
  void reset();
  /// Keeps the first `tokens`, which count as no work of this conversation; there are no logits then until a turn or an
  /// append(). All of them: nothing changes. Errors: those of Session::truncate(); then nothing is changed.
  void truncate(std::int64_t tokens);

  /// Of the token that comes next; empty where there are no tokens, and after truncate().
  [[nodiscard]] std::span<const float> logits() const {
    return known_ ? std::span<const float>(logits_) : std::span<const float>();
  }
  [[nodiscard]] std::int64_t tokens() const { return session().tokens(); }
  /// Over everything since reset().
  [[nodiscard]] const Pairs& pairs() const { return record_.pairs; }
  /// The steps since reset() as `headwater attend --steps` takes them: "p4096:8128,p4032,d64".
  [[nodiscard]] std::string steps() const;
  [[nodiscard]] Transformer& transformer() { return transformer_; }
  [[nodiscard]] int slot() const { return slot_; }

  /// Tokens of a turn of n that go into its dense tail.
  [[nodiscard]] std::int64_t tail_of(std::int64_t n) const;

 private:
  [[nodiscard]] const Session& session() const { return transformer_.session(slot_); }
  void begin_anew();
  /// The step that was run counts.
  void count_step();
  void note(const Step& step);

  Transformer& transformer_;
  std::int64_t dense_tail_;
  int slot_;
  std::vector<float> logits_;
  bool known_ = false;  // logits_ are those after the last token
  LayerObserver observer_;
  /// That goes in by step().
  struct Turn {
    std::span<const std::int32_t> ids;
    std::int64_t prefill = 0;  // of these, before the tail
    std::int64_t done = 0;
    bool opens = false;  // the first step opens a turn of the session
  };
  Turn turn_;
  /// Of the steps since reset().
  struct Record {
    Pairs pairs;
    std::uint64_t computed = 0;  // pairs of all layers
    std::string steps;           // of turns; append() must not grow a text
    std::int64_t appended = 0;   // tokens since then
  };
  Record record_;
  /// What the latest feed() or append() began with: steps are only appended, so that a length brings them back.
  struct Before {
    std::int64_t tokens = 0;
    Pairs pairs;
    std::uint64_t computed = 0;
    std::size_t steps = 0;
    std::int64_t appended = 0;
  };
  [[nodiscard]] Before now() const {
    return {tokens(), record_.pairs, record_.computed, record_.steps.size(), record_.appended};
  }
  Before before_;
};

}  // namespace headwater::runtime
