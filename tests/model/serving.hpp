#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "headwater/error.hpp"
#include "headwater/preset.hpp"
#include "runtime/serve/prefix_cache.hpp"
#include "runtime/serve/scheduler.hpp"
#include "tests/model/support.hpp"

/// Servers of the small model below HTTP, and requests for them.
namespace headwater::runtime::testing {

using End = Completion::End;

inline const Tokenizer& tokenizer() {
  static const auto one = Tokenizer::from_gguf(*bundled_file());
  return *one;
}

struct Serving {
  Select select = Select::sketches;
  int slots = 1;
  std::int64_t capacity = 2048;
  std::int64_t chunk = 32;
  std::int64_t ram_pages = 1000;
  std::string directory = {};
  std::int64_t disk_bytes = std::int64_t{1} << 40;
  std::string fingerprint = "tests";
  std::size_t queue = 64;
  bool exact = false;
  std::string engine = {};
  std::int64_t dense_below = 0;
  std::int64_t local = 8;
  std::int64_t heavy = 16;
  std::int64_t pinned = 0;
  std::int64_t kv_bits = 0;
  Quality preset = Quality::balanced;  ///< its sizes of the rule
};

/// Everything that a server has below HTTP.
struct Bench {
  explicit Bench(const Serving& setup, std::function<double()> clock = {})
      : transformer(bundled(Precision::f32), transformer_options(setup)),
        cache(transformer, cache_options(setup)),
        scheduler(transformer, tokenizer(), cache, {8, setup.queue, setup.exact, std::move(clock)}) {}

  static TransformerOptions transformer_options(const Serving& setup) {
    TransformerOptions chosen = options(setup.capacity);
    if (!setup.engine.empty()) chosen.engine = setup.engine;
    chosen.attention.batch = chosen.attention.chunk = setup.chunk;
    const Options sizes = preset(setup.preset);
    chosen.attention.pool = sizes.pool;
    chosen.attention.refine = sizes.refine;
    chosen.attention.local = setup.local;
    chosen.attention.heavy = setup.heavy;
    chosen.attention.pinned = setup.pinned;
    chosen.attention.select = setup.select;
    chosen.attention.page = 256;
    chosen.attention.kv_bits = setup.kv_bits;
    chosen.attention.dense_below = setup.dense_below;
    chosen.slots = setup.slots;
    return chosen;
  }
  static PrefixCache::Options cache_options(const Serving& setup) {
    return {1, setup.ram_pages, setup.directory, setup.disk_bytes, setup.fingerprint};
  }
  void work() {
    while (scheduler.run_step()) {
    }
  }
  /// The request's answer, alone.
  struct Answer {
    std::vector<std::int32_t> ids;
    std::vector<float> logprobs;
    std::string text;
    End end = End::none;
    CompletionFacts facts;
  };
  static Answer answer_of(Completion& job) {
    Answer answer;
    while (answer.end == End::none) {
      const auto event = job.next(std::chrono::milliseconds(0));
      if (!event) break;
      for (const GeneratedToken& one : event->tokens) {
        answer.ids.push_back(one.token.id);
        answer.logprobs.push_back(one.token.logprob);
      }
      answer.text += event->text;
      answer.end = event->end;
    }
    answer.facts = job.facts();
    return answer;
  }
  void run_steps(int n) {
    for (int i = 0; i < n; ++i) ASSERT_TRUE(scheduler.run_step());
  }
  Answer ask(CompletionRequest request) {
    const auto job = scheduler.submit(std::move(request));
    work();
    return answer_of(*job);
  }

  Transformer transformer;
  PrefixCache cache;
  Scheduler scheduler;
};

inline CompletionRequest request(std::vector<std::int32_t> prompt, std::int64_t most = 4) {
  CompletionRequest one;
  one.prompt = std::move(prompt);
  one.max_tokens = most;
  one.top_logprobs = 2;
  one.ignore_end = true;
  return one;
}

/// n ids of a document, then `question` of their own.
inline std::vector<std::int32_t> document_and(std::int64_t n, std::int32_t question) {
  std::vector<std::int32_t> ids = some_ids(n);
  for (std::int32_t i = 0; i < 10; ++i) ids.push_back(100 + 10 * question + i);
  return ids;
}

/// The same request without the cache.
inline CompletionRequest cold(CompletionRequest one) {
  one.use_cache = false;
  return one;
}

inline std::vector<std::int32_t> all_of(std::int32_t id, std::size_t n) {
  return std::vector<std::int32_t>(n, id);
}

}  // namespace headwater::runtime::testing
