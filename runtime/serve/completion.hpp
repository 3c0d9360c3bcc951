#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/generate/conversation.hpp"
#include "runtime/generate/sampler.hpp"
#include "runtime/serve/prompt_atlas.hpp"

namespace headwater::runtime {

/// What a client wants to have completed.
struct CompletionRequest {
  std::vector<std::int32_t> prompt;  ///< ids, one or more
  std::int64_t max_tokens = -1;  ///< most tokens to generate; -1: until the text ends or the context is full
  SamplingOptions sampling;
  std::vector<std::string> stop;    ///< the answer ends before the first of these texts; none is empty
  bool ignore_end = false;          ///< go on behind the token that ends a text
  std::optional<int> top_logprobs;  ///< with each token its log probability, and those of so many best ones
  PromptRule rule;                  ///< where it is not the server's
  /// Last tokens of a sparse prompt that see every token; none: the server's number.
  std::optional<std::int64_t> dense_tail;
  bool use_cache = true;  ///< begin with what earlier requests left, and leave what this one read
  bool atlas = false;     ///< CompletionFacts::atlas is wanted
};

/// A token of an answer with the logarithm (base e) of its probability at temperature 1, no filter applied.
struct TokenLogprob {
  std::int32_t id = 0;
  float logprob = 0;
};

struct GeneratedToken {
  TokenLogprob token;
  std::vector<TokenLogprob> best;  ///< the best ones in falling order, as many as were asked for
};

/// What an answer cost.
struct CompletionFacts {
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;  ///< of these, read from the cache
  std::int64_t generated_tokens = 0;
  /// The answer has the bits that it has with an empty cache.
  bool exact = true;
  Pairs pairs;                 ///< of this request
  double queued_seconds = 0;   ///< until a slot was free
  double prefill_seconds = 0;  ///< from then to the first token, other requests' steps included
  double decode_seconds = 0;   ///< from the first token to the last, the same
  std::string steps;           ///< of the prompt, as `headwater attend --steps` takes them
  std::shared_ptr<const PromptAtlas>
      atlas;  ///< once the prompt is in, where it was asked for and the model is in one part
};

/// A request on its way: the scheduler writes events, one client thread reads them.
class Completion {
 public:
  enum class End : std::uint8_t {
    none,    ///< it goes on
    token,   ///< the model ended the text
    stop,    ///< one of the request's stop texts came
    length,  ///< max_tokens, or the context is full
    cancel,  ///< cancel() was called
    error,   ///< the message says which
  };
  struct Event {
    /// Tokens of the prompt that are processed, those from the cache included; 0: the event is none of progress.
    std::int64_t prompt_done = 0;
    double prompt_seconds = 0;  ///< since the slot began
    // Of the answer: what has become readable. Never half a character, and nothing that may belong to a stop text.
    std::string text;
    std::vector<GeneratedToken> tokens;  ///< generated since the event before, their text may come later
    // The last event has an end.
    End end = End::none;
    std::string message;  ///< End::error: one line
  };

  Completion(std::uint64_t number, CompletionRequest request)
      : request_(std::move(request)), number_(number) {}

  [[nodiscard]] const CompletionRequest& request() const { return request_; }
  /// Counts from 1, each once in a server's life.
  [[nodiscard]] std::uint64_t number() const { return number_; }

  /// Waits for the next event; none: `wait` went by without one.
  [[nodiscard]] std::optional<Event> next(std::chrono::milliseconds wait);
  /// The client has gone: work on it ends with the step that runs. May be called at any time, more than once.
  void cancel();
  /// So far; after the last event they stay as they are.
  [[nodiscard]] CompletionFacts facts() const;

  // Of the scheduler.
  void push(Event event, CompletionFacts facts);
  [[nodiscard]] bool cancelled() const;

 private:
  const CompletionRequest request_;
  const std::uint64_t number_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> events_;
  CompletionFacts facts_;
  bool cancelled_ = false;
};

}  // namespace headwater::runtime
