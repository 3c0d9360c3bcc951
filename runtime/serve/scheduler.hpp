#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "headwater/preset.hpp"
#include "runtime/generate/conversation.hpp"
#include "runtime/generate/sampler.hpp"
#include "runtime/serve/completion.hpp"
#include "runtime/serve/prefix_cache.hpp"
#include "runtime/serve/stop_texts.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace headwater::runtime {

/// Requests through the slots of one transformer. Prompts go in a chunk at a time, in turn; between these steps all answers
/// that are being written get a token each by one decode step, for as long as the prompts took: while a long prompt is read
/// they keep half of their rate. A request has the same bits whatever else runs.
class Scheduler {
 public:
  struct Options {
    std::int64_t dense_tail = kDenseTail;  ///< of requests that do not say it
    std::size_t most_queued = 64;          ///< requests that wait for a slot
    bool exact = false;                    ///< use of the cache must not change bits
    std::function<double()> clock = {};    ///< seconds; empty: the steady clock
  };

  Scheduler(Transformer& transformer, const Tokenizer& tokenizer, PrefixCache& cache, Options options);

  // Of any thread.

  /// Null: the queue is full, or the server ends. Errors: invalid_argument for a request that cannot be answered.
  [[nodiscard]] std::shared_ptr<Completion> submit(CompletionRequest request);
  /// Runs an action between two steps, on the thread of run(), and waits for it; false: the server has ended. What the action
  /// throws comes here.
  bool between_steps(std::function<void()> action);
  /// No new requests; run() returns when those that are there are answered, or at once where `now`.
  void stop(bool now);

  struct SlotFacts {
    std::uint64_t request = 0;  ///< Completion::number(); 0: the slot is free
    std::int64_t prompt_tokens = 0;
    std::int64_t cached_tokens = 0;
    std::int64_t stored_tokens = 0;
    std::int64_t generated_tokens = 0;
    bool reading = false;  ///< its prompt
  };
  /// Sums since the start.
  struct Facts {
    std::int64_t requests = 0;                            ///< that ended
    std::int64_t cancelled = 0, failed = 0, refused = 0;  ///< of these; refused ones are no requests
    std::int64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
    std::int64_t prefill_steps = 0, decode_steps = 0;
    double prefill_seconds = 0, decode_seconds = 0;
    std::int64_t queued = 0;  ///< now
    PrefixCache::Facts cache;
    std::vector<SlotFacts> slots;
  };
  [[nodiscard]] Facts facts() const;

  // Of one thread.

  /// Works until stop(). Sessions that are left go to the cache.
  void run();
  /// One step, or one action; false: there is nothing to do.
  bool run_step();
  /// What the request in this slot held last; empty where there was none. For /slots, between steps.
  [[nodiscard]] std::span<const std::int32_t> last_of(std::size_t slot) const { return slots_[slot]->last; }

 private:
  using Event = Completion::Event;
  struct Slot {
    explicit Slot(Transformer& transformer, int number) : talk(transformer, 0, number) {}

    Conversation talk;
    std::shared_ptr<Completion> job;  // null: free
    std::vector<std::int32_t> ids;    // of prompt and answer
    std::optional<PageList> pages;
    Origin origin;             // once the prompt is in
    bool reading = false;      // its prompt
    std::int64_t prefill = 0;  // tokens before the dense tail
    std::optional<Sampler> sampler;
    std::optional<StreamDecoder> decoder;
    std::optional<StopTexts> stops;
    std::shared_ptr<PromptAtlas> atlas;  // where it is asked for
    CompletionFacts facts;
    double begun = 0;      // by the clock
    double answering = 0;  // the same, when the first token came
    std::vector<std::int32_t> last;
  };
  struct Queued {
    std::shared_ptr<Completion> job;
    double since = 0;
  };
  struct Action {
    std::function<void()> run;
    std::promise<bool> done;
  };
  /// What a prompt may begin with.
  struct Source {
    PrefixCache::Use use;
    Slot* slot = nullptr;  // null: the cache's, where use.tokens > 0
  };

  /// What of a request's rule is not the server's: the cache knows a rule by that.
  [[nodiscard]] PromptRule own_part(PromptRule rule) const;
  [[nodiscard]] PrefixCache::Wanted wanted_of(const CompletionRequest& request) const;
  [[nodiscard]] std::int64_t tail_of(const CompletionRequest& request) const;
  [[nodiscard]] Source source_of(const PrefixCache::Wanted& wanted) const;
  [[nodiscard]] bool worth_waiting(const PrefixCache::Wanted& wanted, const Source& source) const;
  void drop_cancelled();
  void admit();
  void begin(Slot& slot, const Queued& queued);
  [[nodiscard]] std::unique_ptr<Prefix> beginning(const PrefixCache::Wanted& wanted, Source& source);
  void open(Slot& slot, const PromptRule& rule);
  void observe(Slot& slot);
  void read(Slot& slot);
  void decode(const std::vector<Slot*>& slots);
  void draw(Slot& slot);
  void finish(Slot& slot, Completion::End end, Event event = {});
  void fail(Slot& slot, const std::string& message);
  void free(Slot& slot, bool keep);
  [[nodiscard]] Origin origin_of(const Slot& slot) const;
  void publish();
  [[nodiscard]] double now() const { return options_.clock(); }

  Transformer& transformer_;
  const Tokenizer& tokenizer_;
  PrefixCache& cache_;
  Options options_;
  std::int64_t capacity_;  // of a slot; sessions themselves are the thread's of run()
  std::int64_t chunk_;
  bool forks_;  // the engine does, and the model is in one part
  std::vector<std::unique_ptr<Slot>> slots_;
  std::size_t turn_ = 0;      // of the slot whose prompt goes on next
  double prefill_spent_ = 0;  // while answers were written, too
  double decode_spent_ = 0;   // while prompts were read, too

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Queued> queue_;
  std::deque<Action> actions_;
  std::uint64_t numbers_ = 0;
  bool stopping_ = false;
  bool stop_now_ = false;
  bool ended_ = false;
  Facts facts_;
};

}  // namespace headwater::runtime
