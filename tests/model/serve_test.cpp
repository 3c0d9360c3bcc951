// Many requests over one model: what each is answered, alone, in company, from the cache, from files.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "headwater/error.hpp"
#include "headwater/preset.hpp"
#include "runtime/serve/prefix_cache.hpp"
#include "runtime/serve/scheduler.hpp"
#include "runtime/serve/stop_texts.hpp"
#include "tests/model/support.hpp"

namespace headwater::runtime::testing {
namespace {

namespace fs = std::filesystem;
using End = Completion::End;

const Tokenizer& tokenizer() {
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
  Answer ask(CompletionRequest request) {
    const auto job = scheduler.submit(std::move(request));
    work();
    return answer_of(*job);
  }

  Transformer transformer;
  PrefixCache cache;
  Scheduler scheduler;
};

CompletionRequest request(std::vector<std::int32_t> prompt, std::int64_t most = 4) {
  CompletionRequest one;
  one.prompt = std::move(prompt);
  one.max_tokens = most;
  one.top_logprobs = 2;
  one.ignore_end = true;
  return one;
}

/// n ids of a document, then `question` of their own.
std::vector<std::int32_t> document_and(std::int64_t n, std::int32_t question) {
  std::vector<std::int32_t> ids = some_ids(n);
  for (std::int32_t i = 0; i < 10; ++i) ids.push_back(100 + 10 * question + i);
  return ids;
}

std::string new_directory() {
  std::string name = (fs::temp_directory_path() / "headwater-serve-XXXXXX").string();
  EXPECT_NE(::mkdtemp(name.data()), nullptr);
  return name;
}

TEST(StopTexts, HoldsBackWhatMayBecomeOne) {
  struct Case {
    std::vector<std::string> stops;
    std::vector<std::string> pushes;
    std::string text;
    bool found;
  };
  const std::vector<Case> cases = {
      {{}, {"abc", "def"}, "abcdef", false},
      {{"END"}, {"abE", "NDx"}, "ab", true},
      {{"END"}, {"abE", "Nx"}, "abENx", false},
      {{"aab"}, {"a", "a", "a", "b"}, "a", true},
      {{"xyz", "yz"}, {"wx", "y", "z"}, "w", true},
      {{"abcd", "bc"}, {"abc"}, "a", true},
      {{"abcd", "bc"}, {"abcd"}, "a", true},
      {{"bc", "abc"}, {"xabc"}, "x", true},
      {{"\n"}, {"\n"}, "", true},
      {{"END"}, {"EN"}, "EN", false},
      {{"END"}, {"EN", "EN", "E", "x"}, "ENENEx", false},
      {{"END"}, {"ENEN", "Dmore"}, "EN", true},
      {{"ab", "abc"}, {"xa", "b", "c"}, "x", true},
      {{"abc", "ab"}, {"xa", "bc"}, "x", true},
      {{"\xC3\xA9"}, {"a\xC3\xA8", "\xC3", "\xA9z"}, "a\xC3\xA8", true},
  };
  for (const Case& one : cases) {
    StopTexts stops(one.stops);
    std::string text;
    for (const std::string& push : one.pushes) {
      if (!stops.found()) text += stops.push(push);
    }
    EXPECT_EQ(stops.found(), one.found);
    if (!stops.found()) text += stops.finish();
    EXPECT_EQ(text, one.text);
  }
}

// Of two letters, so that stops begin everywhere: what was returned is all that cannot belong to one.
TEST(StopTexts, ReturnWhatIsCertainAndNoLess) {
  std::mt19937 random(1);
  const auto letters = [&](unsigned least, unsigned most) {
    std::string text(least + random() % (most - least + 1), 'a');
    for (char& letter : text) letter = random() % 2 == 0 ? 'a' : 'b';
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    const std::vector<std::string> texts{letters(1, 6), letters(3, 7)};
    StopTexts stops(texts);
    std::string all;
    std::string returned;
    while (!stops.found() && all.size() < 40) {
      const std::string more = letters(0, 4);
      all += more;
      returned += stops.push(more);
      // The one that is complete first, by letters.
      std::size_t at = std::string::npos;
      for (std::size_t end = 1; end <= all.size() && at == std::string::npos; ++end) {
        for (const std::string& stop : texts) {
          if (all.substr(0, end).ends_with(stop)) at = std::min(at, end - stop.size());
        }
      }
      ASSERT_EQ(stops.found(), at != std::string::npos);
      std::size_t certain = std::min(at, all.size());
      const auto may_begin = [&](const std::string& stop) { return stop.starts_with(all.substr(certain)); };
      if (!stops.found()) {
        for (certain = 0; !may_begin(texts[0]) && !may_begin(texts[1]);) ++certain;
      }
      ASSERT_EQ(returned, all.substr(0, certain)) << texts[0] << ' ' << texts[1] << ' ' << all;
    }
    if (!stops.found()) {
      ASSERT_EQ(returned + stops.finish(), all);
    }
  }
}

TEST(PageList, CountsWhatForksShareOnce) {
  const auto count = std::make_shared<std::int64_t>(0);
  {
    PageList one(count, 256);
    one.grow(1000);
    EXPECT_EQ(*count, 4);
    PageList whole = one.fork(1000);
    EXPECT_EQ(*count, 4);
    whole.grow(1001);  // its last page is copied
    EXPECT_EQ(*count, 5);
    PageList cut = one.fork(512);
    cut.grow(512);
    EXPECT_EQ(*count, 5);
    cut.grow(513);
    EXPECT_EQ(*count, 6);
    one.grow(1024);
    EXPECT_EQ(*count, 7 - 1);  // nobody shares its last page any more
    one.grow(5);               // nothing shrinks
    PageList none = one.fork(0);
    PageList more = one.fork(5000);
    EXPECT_EQ(*count, 6);
    none.grow(1);
    more.grow(1025);  // its last page was full: none is copied
    EXPECT_EQ(*count, 8);
    PageList first = one.fork(100);
    PageList second = first.fork(50);
    one = PageList(count, 256);
    whole = cut = none = more = one.fork(0);
    EXPECT_EQ(*count, 1);
    second.grow(300);  // 50 tokens of a shared page
    EXPECT_EQ(*count, 3);
  }
  EXPECT_EQ(*count, 0);
}

TEST(Scheduler, AnswersAsAConversationDoes) {
  Bench bench({});
  Transformer other(bundled(Precision::f32), Bench::transformer_options({}));
  for (const std::int64_t n : {1, 31, 32, 33, 40, 41, 100, 300}) {
    CompletionRequest asked = request(some_ids(n), 6);
    asked.use_cache = false;
    const Bench::Answer answer = bench.ask(asked);
    Conversation conversation(other, 8);
    conversation.reset();
    conversation.feed(some_ids(n));
    const std::string steps = conversation.steps();
    std::vector<std::int32_t> ids;
    std::vector<double> logprobs;
    for (int i = 0; i < 6; ++i) {
      const std::span<const float> logits = conversation.logits();
      ids.push_back(best_token(logits));
      double sum = 0;
      for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
      logprobs.push_back(static_cast<double>(logits[static_cast<std::size_t>(ids.back())]) - std::log(sum));
      if (i < 5) conversation.append(ids.back());
    }
    EXPECT_EQ(answer.ids, ids) << n;
    for (std::size_t i = 0; i < ids.size(); ++i) EXPECT_NEAR(answer.logprobs[i], logprobs[i], 1e-5);
    EXPECT_EQ(answer.end, End::length);
    EXPECT_EQ(answer.text, tokenizer().decode(ids));
    EXPECT_EQ(answer.facts.steps, steps);
    EXPECT_EQ(answer.facts.pairs.computed, conversation.pairs().computed);
  }
}

TEST(Scheduler, EndsWhereItIsTold) {
  Bench bench({.capacity = 64});
  EXPECT_EQ(bench.ask(request(some_ids(60), 0)).ids.size(), 0U);
  EXPECT_EQ(bench.ask(request(some_ids(60), 1)).ids.size(), 1U);
  // The last token need not be stored.
  const Bench::Answer full = bench.ask(request(some_ids(60), -1));
  EXPECT_EQ(full.ids.size(), 5U);
  EXPECT_EQ(full.end, End::length);
  CompletionRequest stopped = request(some_ids(40), 20);
  stopped.use_cache = false;
  const std::string text = bench.ask(stopped).text;
  ASSERT_GT(text.size(), 8U);
  stopped.stop = {text.substr(5, 3)};
  const Bench::Answer answer = bench.ask(stopped);
  EXPECT_EQ(answer.end, End::stop);
  EXPECT_EQ(answer.text, text.substr(0, text.find(stopped.stop[0])));
}

TEST(Scheduler, EndsWithTheTokenThatEndsTexts) {
  Bench bench({.capacity = 64});
  CompletionRequest one = request(some_ids(40), 20);
  one.ignore_end = false;
  one.use_cache = false;
  const Bench::Answer whole = bench.ask(one);
  std::int32_t end = 0;
  while (!tokenizer().is_end(end)) ++end;
  one.sampling.logit_bias = {{end, 1000.0}};
  const Bench::Answer none = bench.ask(one);
  EXPECT_EQ(none.end, End::token);
  EXPECT_EQ(none.text, "");
  EXPECT_EQ(none.ids.size(), 0U);
  EXPECT_EQ(none.facts.generated_tokens, 0);
  one.ignore_end = true;
  one.max_tokens = 3;
  EXPECT_EQ(bench.ask(one).ids, std::vector<std::int32_t>(3, end));
  // The prompt fills the context: a token comes all the same.
  EXPECT_EQ(bench.ask(request(some_ids(64), -1)).ids.size(), 1U);
  // What was held back for a stop text that did not come is in the answer.
  CompletionRequest held = request(some_ids(40), 20);
  held.ignore_end = false;
  held.use_cache = false;
  held.stop = {whole.text + "?", whole.text.substr(3) + "!"};
  EXPECT_EQ(bench.ask(held).text, whole.text);
}

TEST(Scheduler, LogprobsAreThoseOfAllTokens) {
  Bench bench({});
  CompletionRequest one = request(some_ids(50), 3);
  one.top_logprobs = 4096;
  one.sampling.temperature = 5;  // changes the draw alone
  one.sampling.logit_bias = {{7, 500.0}};
  const auto job = bench.scheduler.submit(one);
  bench.work();
  int tokens = 0;
  while (const auto event = job->next(std::chrono::milliseconds(0))) {
    for (const GeneratedToken& token : event->tokens) {
      ++tokens;
      ASSERT_EQ(token.best.size(), 4096U);
      double sum = 0;
      for (std::size_t i = 0; i < token.best.size(); ++i) {
        sum += std::exp(static_cast<double>(token.best[i].logprob));
        if (i > 0) {
          EXPECT_LE(token.best[i].logprob, token.best[i - 1].logprob);
        }
        if (token.best[i].id == token.token.id) {
          EXPECT_EQ(token.best[i].logprob, token.token.logprob);
        }
      }
      EXPECT_NEAR(sum, 1.0, 1e-4);
      EXPECT_EQ(token.token.id, 7);
      EXPECT_LT(token.token.logprob, -0.1F) << "of the model, not of the bias";
    }
  }
  EXPECT_EQ(tokens, 3);
  one.top_logprobs.reset();
  EXPECT_EQ(bench.ask(one).ids.size(), 0U);
}

TEST(Scheduler, RefusesWhatCannotBeAnswered) {
  Bench bench({.capacity = 64, .queue = 2});
  const auto refused = [&](const CompletionRequest& one, const char* names) {
    try {
      (void)bench.scheduler.submit(one);
      ADD_FAILURE() << names;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(names));
    }
  };
  refused(request({}), "1 .. 64");
  refused(request(some_ids(65)), "1 .. 64");
  refused(request({-1}), "token id");
  refused(request({4096}), "0 .. 4095");
  refused(request({5}, -2), "max_tokens");
  CompletionRequest stop = request({5});
  stop.stop = {""};
  refused(stop, "stop");
  CompletionRequest hot = request({5});
  hot.sampling.temperature = -1;
  refused(hot, "temperature");
  CompletionRequest best = request({5});
  best.top_logprobs = -1;
  refused(best, "top_logprobs");
  CompletionRequest tail = request({5});
  tail.dense_tail = -1;
  refused(tail, "dense_tail");
  CompletionRequest biased = request({5});
  biased.sampling.logit_bias = {{4096, 1.0}};
  refused(biased, "logit_bias");
  const auto first = bench.scheduler.submit(request({5}));
  const auto second = bench.scheduler.submit(request({6}));
  EXPECT_EQ(bench.scheduler.submit(request({7})), nullptr);
  second->cancel();
  bench.work();
  EXPECT_EQ(Bench::answer_of(*first).end, End::length);
  EXPECT_EQ(Bench::answer_of(*second).end, End::cancel);
  EXPECT_EQ(bench.scheduler.facts().refused, 1);
}

TEST(Scheduler, ACancelledRequestEndsWithItsStep) {
  Bench bench({});
  const auto reading = bench.scheduler.submit(request(some_ids(300)));
  ASSERT_TRUE(bench.scheduler.run_step());
  reading->cancel();
  bench.work();
  EXPECT_EQ(bench.scheduler.facts().prefill_steps, 1);
  EXPECT_EQ(Bench::answer_of(*reading).end, End::cancel);
  const auto writing = bench.scheduler.submit(request(some_ids(10), 100));
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(bench.scheduler.run_step());
  writing->cancel();
  bench.work();
  EXPECT_EQ(bench.scheduler.facts().decode_steps, 4);
  EXPECT_EQ(bench.scheduler.facts().cancelled, 2);
}

TEST(Scheduler, ARequestThatFailsEndsAlone) {
  const Serving setup{.slots = 2};
  Bench bench(setup);
  Bench other(setup);
  struct Fault : std::runtime_error {
    Fault() : std::runtime_error("a fault") {}
  };
  const auto writing = bench.scheduler.submit(request(some_ids(5), 30));
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(bench.scheduler.run_step());
  const auto reading = bench.scheduler.submit(request(some_ids(300)));
  bench.transformer.set_observer([&](const LayerView& view) {
    if (view.n == 32 && view.layer == 1) throw Fault();
  });
  while (bench.scheduler.facts().failed == 0) ASSERT_TRUE(bench.scheduler.run_step());
  bench.transformer.set_observer({});
  bench.work();
  EXPECT_EQ(Bench::answer_of(*reading).end, End::error);
  EXPECT_EQ(Bench::answer_of(*writing).logprobs, other.ask(request(some_ids(5), 30)).logprobs);
  // A decode step fails for all that are in it, and nothing of it stays.
  const auto first = bench.scheduler.submit(request(some_ids(6), 30));
  const auto second = bench.scheduler.submit(request(some_ids(7), 30));
  const auto both_write = [&] {
    const auto slots = bench.scheduler.facts().slots;
    return std::ranges::all_of(slots, [](const auto& slot) { return slot.request != 0 && !slot.reading; });
  };
  while (!both_write()) ASSERT_TRUE(bench.scheduler.run_step());
  bench.transformer.set_observer([](const LayerView&) { throw Fault(); });
  ASSERT_TRUE(bench.scheduler.run_step());
  bench.transformer.set_observer({});
  EXPECT_EQ(Bench::answer_of(*first).end, End::error);
  EXPECT_EQ(Bench::answer_of(*second).end, End::error);
  EXPECT_EQ(bench.scheduler.facts().failed, 3);
  EXPECT_EQ(bench.ask(request(some_ids(300))).logprobs, other.ask(request(some_ids(300))).logprobs);
}

TEST(Scheduler, ManyHaveTheBitsOfEachAlone) {
  std::vector<CompletionRequest> requests;
  for (const std::int64_t n : {5, 200, 33, 90, 1, 64, 150, 32, 400}) {
    requests.push_back(request(document_and(n, static_cast<std::int32_t>(n % 50)), 3 + n % 7));
    requests.back().use_cache = false;
    requests.back().sampling.temperature = n % 2 == 0 ? 0.8 : 0.0;
    requests.back().sampling.seed = static_cast<std::uint64_t>(n);
    requests.back().sampling.repeat_penalty = n == 90 ? 1.3 : 1.0;
  }
  Bench alone({});
  Bench together({.slots = 4});
  std::vector<std::shared_ptr<Completion>> jobs;
  for (const CompletionRequest& one : requests) jobs.push_back(together.scheduler.submit(one));
  together.work();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Bench::Answer wanted = alone.ask(requests[i]);
    const Bench::Answer got = Bench::answer_of(*jobs[i]);
    EXPECT_EQ(got.ids, wanted.ids) << i;
    EXPECT_EQ(got.logprobs, wanted.logprobs) << i;
  }
}

TEST(Scheduler, AnswersKeepHalfOfTheTimeWhilePromptsAreRead) {
  // By this clock a chunk of 32 rows takes 10, a token of both answers 1.
  double time = 0;
  Bench bench({.slots = 3}, [&] { return time; });
  bench.transformer.set_observer([&](const LayerView& view) {
    if (view.layer == 0 && view.stage == LayerView::Stage::input) time += view.n == 32 ? 10 : 1;
  });
  const auto first = bench.scheduler.submit(request(some_ids(5), 500));
  const auto second = bench.scheduler.submit(request(some_ids(6), 500));
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(bench.scheduler.run_step());
  const auto prompt = bench.scheduler.submit(request(document_and(1200, 1)));
  const Scheduler::Facts before = bench.scheduler.facts();
  while (bench.scheduler.facts().prefill_steps < before.prefill_steps + 30)
    ASSERT_TRUE(bench.scheduler.run_step());
  const std::int64_t tokens = bench.scheduler.facts().decode_steps - before.decode_steps;
  EXPECT_GE(tokens, 29 * 10);
  EXPECT_LE(tokens, 30 * 10 + 1);
}

struct CacheCase {
  Select select;
  std::int64_t chunk;
  std::int64_t document;
};

TEST(PrefixCache, AWarmAnswerIsAColdOneWhereOnlyWholeChunksAreUsed) {
  for (const auto& [select, chunk, document] :
       {CacheCase{Select::sketches, 32, 300}, CacheCase{Select::blocks, 32, 256},
        CacheCase{Select::sketches, 32, 255}}) {
    const Serving setup{.select = select, .capacity = 4096, .chunk = chunk, .exact = true};
    Bench cold(setup);
    Bench warm(setup);
    warm.ask(request(document_and(document, 1)));
    for (const std::int32_t question : {2, 1, 3}) {
      const Bench::Answer wanted = cold.ask([&] {
        CompletionRequest one = request(document_and(document, question));
        one.use_cache = false;
        return one;
      }());
      const Bench::Answer got = warm.ask(request(document_and(document, question)));
      EXPECT_EQ(got.facts.cached_tokens % chunk, 0);
      EXPECT_GE(got.facts.cached_tokens, document - chunk - 8);
      EXPECT_TRUE(got.facts.exact);
      EXPECT_EQ(got.ids, wanted.ids);
      EXPECT_EQ(got.logprobs, wanted.logprobs);
    }
  }
}

// A request's own rule and memory give the bits of a server that has them for all requests.
TEST(Scheduler, ARequestMayHaveItsOwnRule) {
  struct Case {
    PromptRule rule;
    Serving as;
    std::int64_t heavy;
  };
  const std::vector<Case> cases = {
      {{.select = Select::h2o}, {.select = Select::h2o}, 16},
      {{.select = Select::h2o, .memory = 31}, {.select = Select::h2o}, 23},
      {{.select = Select::blocks, .memory = 39}, {.select = Select::blocks}, 24},  // whole key blocks
      {{.memory = 20}, {.select = Select::sketches}, 12},
      {{.memory = 5}, {.select = Select::sketches}, 0},
  };
  Serving own{.select = Select::sketches, .chunk = 64};
  Bench bench(own);
  std::set<std::vector<float>> answers;
  for (const Case& one : cases) {
    CompletionRequest asked = request(document_and(400, 1));
    asked.rule = one.rule;
    const Bench::Answer got = bench.ask(asked);
    Serving server = one.as;
    server.chunk = own.chunk;
    server.heavy = one.heavy;
    server.local = std::min<std::int64_t>(8, one.rule.memory.value_or(8));
    if (one.as.select == Select::blocks) {
      server.preset = Quality::fast;
      server.pinned = 8;
    }
    const Bench::Answer wanted = Bench(server).ask(request(document_and(400, 1)));
    EXPECT_EQ(got.ids, wanted.ids);
    EXPECT_EQ(got.logprobs, wanted.logprobs);
    EXPECT_EQ(got.facts.pairs.computed, wanted.facts.pairs.computed);
    EXPECT_EQ(got.facts.cached_tokens, 0);
    answers.insert(got.logprobs);
  }
  EXPECT_EQ(answers.size(), cases.size());
  // What is the server's is no rule of its own: the cache has its whole chunks.
  bench.ask(request(document_and(400, 1)));
  for (const PromptRule& same : {PromptRule{.select = Select::sketches}, PromptRule{.memory = 24}}) {
    CompletionRequest asked = request(document_and(400, 2));
    asked.rule = same;
    EXPECT_EQ(bench.ask(asked).facts.cached_tokens, 384);
  }
  const auto refused = [&](const PromptRule& rule, const char* message) {
    CompletionRequest asked = request(document_and(400, 1));
    asked.rule = rule;
    try {
      (void)bench.scheduler.submit(asked);
      ADD_FAILURE() << message;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.what(), ::testing::HasSubstr(message));
    }
  };
  refused({.memory = 0}, "memory is 0; allowed: 1 .. 2147483647");
  refused({.memory = std::int64_t{1} << 31}, "memory is 2147483648; allowed: 1 .. 2147483647");
  refused({.dense = true, .memory = 8}, "prefill is dense and has no memory sets");
  refused({.dense = true, .select = Select::h2o}, "prefill is dense and has no memory sets");
}

TEST(PrefixCache, AllThatIsTheSameIsUsed) {
  Bench bench({.chunk = 128});
  const Bench::Answer first = bench.ask(request(document_and(340, 1), 9));
  EXPECT_EQ(first.facts.cached_tokens, 0);
  EXPECT_TRUE(first.facts.exact);
  const Bench::Answer other = bench.ask(request(document_and(340, 2)));
  EXPECT_EQ(other.facts.cached_tokens, 340);
  EXPECT_FALSE(other.facts.exact);
  // The next turn goes on from the answer, whose last token was not stored.
  std::vector<std::int32_t> turn = document_and(340, 1);
  turn.insert(turn.end(), first.ids.begin(), first.ids.end());
  turn.push_back(7);
  EXPECT_EQ(bench.ask(request(turn)).facts.cached_tokens, 350 + 8);
  // The same prompt again: its last token goes in anew.
  EXPECT_EQ(bench.ask(request(document_and(340, 2))).facts.cached_tokens, 349);
  CompletionRequest dense = request(document_and(340, 2));
  dense.rule.dense = true;
  EXPECT_EQ(bench.ask(dense).facts.cached_tokens, 0);
  EXPECT_EQ(bench.ask(dense).facts.cached_tokens, 349);
  CompletionRequest none = request(document_and(340, 2));
  none.use_cache = false;
  EXPECT_EQ(bench.ask(none).facts.cached_tokens, 0);
  // Fewer than 64 tokens are no beginning.
  EXPECT_EQ(bench.ask(request(document_and(63, 2))).facts.cached_tokens, 0);
  EXPECT_EQ(bench.ask(request(document_and(64, 3))).facts.cached_tokens, 64);
}

/// The same request without the cache.
CompletionRequest cold(CompletionRequest one) {
  one.use_cache = false;
  return one;
}

// Prompts on each side of a page and of a chunk, with and without tails, dense, and dense as short ones are.
TEST(PrefixCache, ExactBitsAtEdges) {
  struct Case {
    Serving setup;
    std::vector<std::int64_t> documents;
    bool dense;
    std::optional<std::int64_t> tail;
  };
  const Serving small{.chunk = 32, .exact = true};
  const Serving real{.capacity = 4096, .chunk = 1024, .exact = true};
  const Serving partly{.chunk = 32, .exact = true, .dense_below = 230};
  for (const Case& one : {Case{small, {254, 255, 256, 287}, false, {}}, Case{small, {220, 286}, false, 0},
                          Case{small, {300}, false, 100}, Case{small, {255, 256}, true, {}},
                          Case{partly, {227, 228, 300}, false, {}}, Case{real, {2045, 3000}, false, {}}}) {
    Bench bench(one.setup);
    const std::int64_t chunk = one.setup.chunk;
    for (const std::int64_t document : one.documents) {
      for (const std::int32_t question : {1, 2}) {
        CompletionRequest asked = request(document_and(document, question), 2);
        asked.rule.dense = one.dense;
        asked.dense_tail = one.tail;
        const Bench::Answer wanted = bench.ask(cold(asked));
        const Bench::Answer got = bench.ask(asked);
        EXPECT_EQ(got.ids, wanted.ids) << document;
        EXPECT_EQ(got.logprobs, wanted.logprobs) << document;
        EXPECT_TRUE(got.facts.exact);
        EXPECT_EQ(got.facts.cached_tokens % chunk, 0);
        if (question == 2) {
          const std::int64_t prefill = document + 10 - (one.dense ? 0 : one.tail.value_or(8));
          EXPECT_EQ(got.facts.cached_tokens, std::min(document, prefill) / chunk * chunk) << document;
        }
      }
    }
    EXPECT_GT(bench.scheduler.facts().cached_tokens, 0);
  }
}

TEST(PrefixCache, GoesOnFromASlotThatWrites) {
  const Serving setup{.slots = 3, .chunk = 128};
  Bench bench(setup);
  Bench alone(setup);
  const auto first = bench.scheduler.submit(request(document_and(700, 1), 60));
  while (bench.scheduler.facts().decode_steps < 9) ASSERT_TRUE(bench.scheduler.run_step());
  const auto other = bench.scheduler.submit(request(document_and(700, 2), 20));
  const Bench::Answer wanted = alone.ask(request(document_and(700, 1), 60));
  // A fork of what is being written: prompt and answer so far.
  std::vector<std::int32_t> turn = document_and(700, 1);
  turn.insert(turn.end(), wanted.ids.begin(), wanted.ids.begin() + 5);
  turn.push_back(3);
  const auto next = bench.scheduler.submit(request(turn, 20));
  bench.work();
  const Bench::Answer got = Bench::answer_of(*first);
  EXPECT_EQ(got.ids, wanted.ids);
  EXPECT_EQ(got.logprobs, wanted.logprobs);
  const Bench::Answer from_chunks = Bench::answer_of(*other);
  EXPECT_EQ(from_chunks.facts.cached_tokens, 640);
  EXPECT_TRUE(from_chunks.facts.exact);
  EXPECT_EQ(from_chunks.logprobs, alone.ask(cold(request(document_and(700, 2), 20))).logprobs);
  EXPECT_EQ(Bench::answer_of(*next).facts.cached_tokens, 715);
}

TEST(PrefixCache, WhatACancelledPromptReadIsUsed) {
  Bench bench({.slots = 2, .exact = true});
  const auto reader = bench.scheduler.submit(request(document_and(640, 1)));
  const auto same = bench.scheduler.submit(request(document_and(640, 1)));
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(bench.scheduler.run_step());
  EXPECT_EQ(bench.scheduler.facts().queued, 1) << "it waits for the one that reads";
  reader->cancel();
  bench.work();
  const Bench::Answer answer = Bench::answer_of(*same);
  EXPECT_EQ(answer.facts.cached_tokens, 320);
  EXPECT_EQ(answer.logprobs, bench.ask(cold(request(document_and(640, 1)))).logprobs);
  EXPECT_EQ(Bench::answer_of(*reader).end, End::cancel);
}

// Of entries that give as much, the exact one is taken, and what is said of it is so.
TEST(PrefixCache, AnExactBeginningComesBeforeAnother) {
  const std::string directory = new_directory();
  const Serving setup{.chunk = 128, .directory = directory};
  {
    Bench bench(setup);
    bench.ask(request(document_and(256, 1)));
    bench.cache.save_all();
  }
  Bench bench(setup);
  // Rows of other tokens stand for rows that have other bits.
  Conversation talk(bench.transformer, 0);
  talk.feed(std::vector<std::int32_t>(300, 17));
  PageList pages(bench.cache.pages(), 256);
  pages.grow(300);
  std::vector<std::int32_t> ids = some_ids(256);
  ids.resize(300, 9);
  bench.cache.keep(
      std::move(*PrefixCache::fork(bench.transformer.session(), ids, pages, {{}, true, 0}, {300, false})));
  talk.reset();
  const Bench::Answer got = bench.ask(request(document_and(256, 2)));
  EXPECT_EQ(got.facts.cached_tokens, 256);
  EXPECT_TRUE(got.facts.exact);
  EXPECT_EQ(got.logprobs, bench.ask(cold(request(document_and(256, 2)))).logprobs);
  fs::remove_all(directory);
}

TEST(PrefixCache, OfTheReferenceEngine) {
  Bench bench({.capacity = 256, .exact = true, .engine = "reference"});
  const Bench::Answer wanted = bench.ask(cold(request(document_and(100, 2), 2)));
  bench.ask(request(document_and(100, 1), 1));
  const Bench::Answer got = bench.ask(request(document_and(100, 2), 2));
  EXPECT_EQ(got.facts.cached_tokens, 96);
  EXPECT_EQ(got.logprobs, wanted.logprobs);
}

TEST(PrefixCache, OfRuleH2oSessionsAreUsedWhole) {
  Bench bench({.select = Select::h2o});
  const Bench::Answer first = bench.ask(request(document_and(300, 1), 5));
  EXPECT_EQ(bench.ask(request(document_and(300, 2))).facts.cached_tokens, 0);
  std::vector<std::int32_t> turn = document_and(300, 1);
  turn.insert(turn.end(), first.ids.begin(), first.ids.end());
  EXPECT_EQ(bench.ask(request(turn)).facts.cached_tokens, 310 + 4);
}

TEST(PrefixCache, RequestsThatComeTogetherReadABeginningOnce) {
  Bench bench({.slots = 4});
  std::vector<std::shared_ptr<Completion>> jobs;
  for (std::int32_t question = 0; question < 4; ++question) {
    jobs.push_back(bench.scheduler.submit(request(document_and(640, question), 20)));
  }
  bench.work();
  const std::int64_t alone = 640 / 32 + 2;
  EXPECT_LE(bench.scheduler.facts().prefill_steps, alone + 3 * 2);
  for (const auto& job : jobs) EXPECT_EQ(Bench::answer_of(*job).end, End::length);
  // Four answers hold the document once: three pages, and what each has of its own.
  EXPECT_LE(bench.scheduler.facts().cache.rows_bytes, 3 + 4);
}

TEST(PrefixCache, LeavesTheMemoryByTheTimeOfUse) {
  Bench bench({.ram_pages = 4});
  bench.ask(request(document_and(300, 1)));  // two pages
  std::vector<std::int32_t> backwards = some_ids(310);
  std::reverse(backwards.begin(), backwards.end());
  bench.ask(request(backwards));
  EXPECT_EQ(bench.ask(request(document_and(300, 1), 1)).facts.cached_tokens, 288);
  bench.ask(request(std::vector<std::int32_t>(400, 9)));
  EXPECT_LE(bench.scheduler.facts().cache.rows_bytes, 4);
  EXPECT_GT(bench.ask(request(document_and(300, 1), 1)).facts.cached_tokens, 0);
}

TEST(PrefixCache, ComesBackFromFiles) {
  const std::string directory = new_directory();
  const Serving setup{.chunk = 128, .directory = directory};
  Bench::Answer cold;
  {
    Bench bench(setup);
    cold = bench.ask(request(document_and(340, 1)));
    bench.ask(request(document_and(340, 2)));  // nearly the same: one file is enough
    EXPECT_THROW(Bench{setup}, Error);         // the directory is taken
    bench.cache.save_all();
  }
  std::ofstream(directory + "/notes.txt") << "mine";
  std::ofstream(directory + "/0123456789abcdef.rows.aBcDeF") << "what a killed server left";
  std::ofstream(directory + "/0123456789abcdef.rows") << "the same";
  {
    Serving other = setup;
    other.fingerprint = "another model";
    EXPECT_EQ(Bench(other).ask(request(document_and(340, 1))).facts.cached_tokens, 0);
  }
  EXPECT_TRUE(fs::exists(directory + "/notes.txt"));
  EXPECT_FALSE(fs::exists(directory + "/0123456789abcdef.rows.aBcDeF"));
  EXPECT_FALSE(fs::exists(directory + "/0123456789abcdef.rows"));
  {
    Bench bench(setup);
    const Bench::Answer warm = bench.ask(request(document_and(340, 1)));
    EXPECT_EQ(warm.facts.cached_tokens, 349);
    EXPECT_EQ(warm.ids, cold.ids);
  }
  // Every byte of the ids counts, and rows must be all there.
  for (const bool of_ids : {true, false}) {
    std::vector<fs::path> files;
    for (const auto& file : fs::directory_iterator(directory)) {
      if (file.path().extension() == (of_ids ? ".ids" : ".rows")) files.push_back(file.path());
    }
    ASSERT_EQ(files.size(), 1U);
    if (of_ids) {
      std::fstream file(files[0], std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(100);
      file.put(77);
    } else {
      fs::resize_file(files[0], fs::file_size(files[0]) - 1);
    }
    Bench bench(setup);
    EXPECT_EQ(bench.ask(request(document_and(340, 1))).facts.cached_tokens, 0);
    EXPECT_EQ(bench.scheduler.facts().cache.damaged, 1);
    EXPECT_EQ(bench.cache.take_warnings().size(), 1U);
    bench.cache.save_all();
  }
  Serving small = setup;
  small.disk_bytes = 1000;
  { Bench bench(small); }
  EXPECT_EQ(std::distance(fs::directory_iterator(directory), {}), 2);  // the lock and the notes
  fs::remove_all(directory);
}

std::vector<fs::path> files_of(const std::string& directory, const char* extension) {
  std::vector<fs::path> files;
  for (const auto& file : fs::directory_iterator(directory)) {
    if (file.path().extension() == extension) files.push_back(file.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::int64_t bytes_of(const std::string& directory) {
  std::uintmax_t bytes = 0;
  for (const char* extension : {".ids", ".rows"}) {
    for (const fs::path& file : files_of(directory, extension)) bytes += fs::file_size(file);
  }
  return static_cast<std::int64_t>(bytes);
}

std::vector<std::int32_t> all_of(std::int32_t id, std::size_t n) { return std::vector<std::int32_t>(n, id); }

// Two entries, and what may have become of their files: the answer is the cold one, and what is damaged is gone.
TEST(PrefixCache, DamagedFilesGiveColdAnswers) {
  struct Case {
    const char* what;
    void (*damage)(const std::string& directory);
    std::int64_t damaged;  // entries that are found to be
  };
  const auto swap = [](const std::string& directory, const char* extension) {
    const auto files = files_of(directory, extension);
    fs::rename(files[0], directory + "/swap");
    fs::rename(files[1], files[0]);
    fs::rename(directory + "/swap", files[1]);
  };
  static const auto swap_files = swap;
  const std::vector<Case> cases = {
      {"ids swapped", [](const std::string& d) { swap_files(d, ".ids"); }, 0},
      {"rows swapped", [](const std::string& d) { swap_files(d, ".rows"); }, 2},
      {"rows missing",
       [](const std::string& d) {
         for (const auto& file : files_of(d, ".rows")) fs::remove(file);
       },
       2},
      {"ids missing",
       [](const std::string& d) {
         for (const auto& file : files_of(d, ".ids")) fs::remove(file);
       },
       0},
      {"ids empty",
       [](const std::string& d) {
         for (const auto& file : files_of(d, ".ids")) fs::resize_file(file, 0);
       },
       2},
      {"an id cut off",
       [](const std::string& d) {
         for (const auto& file : files_of(d, ".ids")) fs::resize_file(file, fs::file_size(file) - 4);
       },
       2},
      {"rows of one byte",
       [](const std::string& d) {
         for (const auto& file : files_of(d, ".rows")) fs::resize_file(file, 1);
       },
       2},
      {"a folder",
       [](const std::string& d) {
         for (const auto& file : files_of(d, ".rows")) {
           fs::remove(file);
           fs::create_directory(file);
         }
       },
       2},
  };
  const std::vector<std::vector<std::int32_t>> prompts{document_and(560, 1), all_of(9, 560)};
  const std::string whole = new_directory();
  Serving setup{.chunk = 128, .directory = whole, .exact = true};
  std::vector<Bench::Answer> wanted;
  {
    Bench bench(setup);
    for (const auto& prompt : prompts) wanted.push_back(bench.ask(request(prompt, 2)));
    bench.cache.save_all();
    EXPECT_EQ(files_of(whole, ".rows").size(), 2U);
    EXPECT_EQ(bench.cache.facts().files_bytes, bytes_of(whole));
  }
  for (const Case& one : cases) {
    SCOPED_TRACE(one.what);
    setup.directory = new_directory();
    fs::copy(whole, setup.directory);
    one.damage(setup.directory);
    {
      Bench bench(setup);
      for (std::size_t i = 0; i < prompts.size(); ++i) {
        const Bench::Answer got = bench.ask(request(prompts[i], 2));
        EXPECT_EQ(got.facts.cached_tokens, 0);
        EXPECT_EQ(got.logprobs, wanted[i].logprobs);
      }
      EXPECT_EQ(bench.cache.facts().damaged, one.damaged);
      EXPECT_EQ(bench.cache.take_warnings().size(), static_cast<std::size_t>(one.damaged));
      bench.cache.save_all();
      EXPECT_EQ(bench.cache.take_warnings(), std::vector<std::string>());
      EXPECT_EQ(bench.cache.facts().files_bytes, bytes_of(setup.directory));
      EXPECT_EQ(files_of(setup.directory, ".rows").size(), 2U);
    }
    Bench bench(setup);
    EXPECT_EQ(bench.cache.facts().entries, 2);
    fs::remove_all(setup.directory);
  }
  fs::remove_all(whole);
}

TEST(PrefixCache, RefusesDirectoriesThatItCannotUse) {
  const std::string directory = new_directory();
  std::ofstream(directory + "/file") << "no folder";
  fs::create_directory(directory + "/linked");
  fs::create_symlink(directory + "/file", directory + "/linked/lock");
  for (const char* name : {"/file", "/file/below", "/linked"}) {
    try {
      const Bench bench({.directory = directory + name});
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.what(), ::testing::HasSubstr(name));
    }
  }
  { const Bench made({.directory = directory + "/a/b"}); }
  EXPECT_TRUE(fs::exists(directory + "/a/b/lock"));
  fs::remove_all(directory);
}

// What a server with other options left is not damaged, and is there again when the options are.
TEST(PrefixCache, OptionsOfASessionAreItsModel) {
  const std::string directory = new_directory();
  Serving setup{.chunk = 128, .directory = directory};
  {
    Bench bench(setup);
    bench.ask(request(document_and(300, 1)));
    bench.cache.save_all();
  }
  for (const Serving& other : {Serving{.select = Select::blocks, .chunk = 128, .directory = directory},
                               Serving{.chunk = 64, .directory = directory},
                               Serving{.capacity = 256, .chunk = 128, .directory = directory}}) {
    Bench bench(other);
    EXPECT_EQ(bench.ask(request(document_and(200, 1))).facts.cached_tokens, 0);
    EXPECT_EQ(bench.cache.facts().damaged, 0);
  }
  Bench bench(setup);
  EXPECT_EQ(bench.ask(request(document_and(300, 1))).facts.cached_tokens, 256);
  fs::remove_all(directory);
}

TEST(PrefixCache, FilesHaveTheirLimit) {
  const std::string directory = new_directory();
  Serving setup{.chunk = 128, .directory = directory};
  std::int64_t one = 0;
  {
    Bench bench(setup);
    for (const std::int32_t id : {3, 4, 5}) {
      bench.ask(request(all_of(id, 600), 1));
      bench.cache.save_all();
    }
    one = bytes_of(directory) / 3;
  }
  // Two have room; those that were used last stay.
  setup.disk_bytes = 2 * one + one / 2;
  Bench bench(setup);
  const auto known = [&](std::int32_t id, std::size_t n) {
    const std::vector<std::int32_t> ids = all_of(id, n);
    return bench.cache.find({ids, {}, true, std::ssize(ids) - 8, 128, false}).tokens;
  };
  EXPECT_EQ(known(3, 600), 0);
  EXPECT_EQ(known(4, 600), 599);
  EXPECT_EQ(known(5, 600), 599);
  // One that has no room alone takes none from others.
  bench.ask(request(all_of(6, 1900), 1));
  bench.cache.save_all();
  EXPECT_EQ(known(4, 600), 599);
  EXPECT_EQ(known(5, 600), 599);
  EXPECT_EQ(known(6, 1900), 1899) << "in memory";
  EXPECT_EQ(files_of(directory, ".rows").size(), 2U);
  EXPECT_EQ(bench.cache.facts().files_bytes, bytes_of(directory));
  fs::remove_all(directory);
}

TEST(PrefixCache, ConversationsByName) {
  const std::string directory = new_directory();
  const Serving setup{.directory = directory};
  std::vector<std::int32_t> last;
  std::vector<std::int32_t> more;
  {
    Bench bench(setup);
    bench.ask(request(document_and(300, 1)));
    last.assign(bench.scheduler.last_of(0).begin(), bench.scheduler.last_of(0).end());
    EXPECT_EQ(std::ssize(last), 313);
    EXPECT_EQ(bench.cache.save_as(last, "chat-1.a_b"), 313);
    EXPECT_EQ(bench.cache.save_as(some_ids(313), "other"), -1);
    EXPECT_EQ(bench.cache.restore("other"), -1);
    // It goes on; what has a name keeps its file.
    std::vector<std::int32_t> turn = last;
    for (const std::int32_t id : some_ids(700)) turn.push_back(id);
    bench.ask(request(turn));
    more.assign(bench.scheduler.last_of(0).begin(), bench.scheduler.last_of(0).end());
    bench.cache.save_all();
    EXPECT_EQ(files_of(directory, ".rows").size(), 2U);
  }
  Bench bench(setup);
  EXPECT_EQ(bench.cache.facts().rows_bytes, 0);
  EXPECT_EQ(bench.cache.restore("chat-1.a_b"), 313);
  EXPECT_EQ(bench.cache.facts().rows_bytes, 2);
  EXPECT_EQ(bench.ask(request(document_and(300, 1))).facts.cached_tokens, 288);
  // Dense, the same tokens are another entry; both go.
  CompletionRequest dense = request(document_and(300, 1));
  dense.sampling.logit_bias = {{last[310], 1000.0}};
  dense.rule.dense = true;
  dense.max_tokens = 1;
  bench.ask(dense);
  bench.cache.erase(last);
  EXPECT_EQ(bench.cache.restore("chat-1.a_b"), -1);
  bench.cache.erase(document_and(300, 1));
  bench.cache.erase(more);
  EXPECT_EQ(bench.cache.facts().entries, 0);
  EXPECT_EQ(bench.cache.facts().rows_bytes, 0);
  EXPECT_EQ(bytes_of(directory), 0);
  fs::remove_all(directory);
}

// Prompts that share beginnings, asked in any order, by servers that come and go with little memory and few files: answers
// are cold ones, and the files are those that the cache counts.
TEST(PrefixCache, AnyOrderGivesColdAnswers) {
  std::vector<CompletionRequest> all;
  for (const std::int64_t n : {70, 127, 200, 600}) {
    for (const std::int32_t question : {1, 2}) {
      all.push_back(request(document_and(n, question), 2));
      // Of one document.
      all.back().rule.dense = n == 200 && question == 1;
      if (n == 200 && question == 2) all.back().rule = {.select = Select::blocks, .memory = 32};
      if (n == 600 && question == 2) all.back().rule = {.memory = 12};
    }
    all.push_back(request(all_of(static_cast<std::int32_t>(n), static_cast<std::size_t>(n)), 3));
  }
  for (const Select select : {Select::sketches, Select::h2o}) {
    SCOPED_TRACE(static_cast<int>(select));
    const std::string directory = new_directory();
    Serving setup{.select = select,
                  .slots = 2,
                  .chunk = 64,
                  .ram_pages = 5,
                  .directory = directory,
                  .exact = select != Select::h2o};
    Bench plain({.select = select, .chunk = 64});
    std::map<std::size_t, std::vector<float>> wanted;
    std::mt19937 random(static_cast<unsigned>(select) + 1);
    std::int64_t cached = 0;
    for (int life = 0; life < 3; ++life) {
      setup.disk_bytes = life == 2 ? 2'000'000 : std::int64_t{1} << 40;
      Bench bench(setup);
      for (int round = 0; round < 6; ++round) {
        const std::vector<std::size_t> chosen{random() % all.size(), random() % all.size()};
        std::vector<std::shared_ptr<Completion>> jobs;
        for (const std::size_t i : chosen) jobs.push_back(bench.scheduler.submit(all[i]));
        if (random() % 8 == 0) jobs[0]->cancel();
        bench.work();
        for (std::size_t i = 0; i < chosen.size(); ++i) {
          const Bench::Answer got = Bench::answer_of(*jobs[i]);
          if (got.end == End::cancel) continue;
          std::vector<float>& logprobs = wanted[chosen[i]];
          if (logprobs.empty()) logprobs = plain.ask(cold(all[chosen[i]])).logprobs;
          if (got.facts.exact) {
            EXPECT_EQ(got.logprobs, logprobs) << chosen[i];
          }
        }
        EXPECT_LE(bench.cache.facts().rows_bytes, 5);
        EXPECT_EQ(bench.cache.facts().files_bytes, bytes_of(directory));
        EXPECT_LE(bench.cache.facts().files_bytes, setup.disk_bytes);
      }
      if (life % 2 == 0) bench.cache.save_all();
      EXPECT_EQ(bench.cache.facts().damaged, 0);
      EXPECT_EQ(bench.cache.take_warnings(), std::vector<std::string>());
      EXPECT_EQ(bench.cache.facts().files_bytes, bytes_of(directory));
      cached += bench.scheduler.facts().cached_tokens;
    }
    if (select != Select::h2o) {
      EXPECT_GT(cached, 500);
    }
    fs::remove_all(directory);
  }
}

TEST(Scheduler, StopsAfterWhatIsThereOrAtOnce) {
  for (const bool at_once : {false, true}) {
    Bench bench({.queue = 3});
    std::vector<std::shared_ptr<Completion>> jobs;
    for (const std::int32_t id : {5, 6, 7}) jobs.push_back(bench.scheduler.submit(request(all_of(id, 100))));
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(bench.scheduler.run_step());
    bench.scheduler.stop(at_once);
    EXPECT_EQ(bench.scheduler.submit(request({5})), nullptr);
    bench.scheduler.run();
    for (const auto& job : jobs) EXPECT_EQ(Bench::answer_of(*job).end, at_once ? End::error : End::length);
    const Scheduler::Facts facts = bench.scheduler.facts();
    EXPECT_EQ(facts.requests, 3);
    EXPECT_EQ(facts.failed, at_once ? 3 : 0);
    EXPECT_EQ(facts.queued, 0);
    EXPECT_EQ(facts.cache.entries, at_once ? 1 : 3) << "what was read is kept";
  }
}

TEST(Scheduler, ActionsRunBetweenSteps) {
  Bench bench({});
  std::thread computing([&] { bench.scheduler.run(); });
  std::thread::id where;
  EXPECT_TRUE(bench.scheduler.between_steps([&] { where = std::this_thread::get_id(); }));
  EXPECT_EQ(where, computing.get_id());
  EXPECT_THROW(bench.scheduler.between_steps([] { throw std::runtime_error("an action's"); }),
               std::runtime_error);
  const auto job = bench.scheduler.submit(request(some_ids(300), 50));
  EXPECT_TRUE(bench.scheduler.between_steps([] {}));
  bench.scheduler.stop(false);
  computing.join();
  EXPECT_EQ(Bench::answer_of(*job).end, End::length);
  EXPECT_FALSE(bench.scheduler.between_steps([] {}));
}

// Requests are cancelled from other threads while they wait, read and write; each has one end, and the counts add up.
TEST(Scheduler, EveryRequestHasAnEnd) {
  Bench bench({.slots = 2, .ram_pages = 8, .queue = 200});
  std::thread computing([&] { bench.scheduler.run(); });
  std::atomic<std::int64_t> submitted = 0;
  std::atomic<std::int64_t> cancelled = 0;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  std::vector<std::thread> clients;
  for (unsigned client = 0; client < 4; ++client) {
    clients.emplace_back([&, client] {
      std::mt19937 random(client);
      while (std::chrono::steady_clock::now() < until) {
        std::vector<std::shared_ptr<Completion>> jobs;
        for (int i = 0; i < 40; ++i) {
          const auto question = static_cast<std::int32_t>(random() % 5);
          const auto job = bench.scheduler.submit(request(document_and(1 + random() % 100, question), 2));
          if (job) jobs.push_back(job);
        }
        submitted += std::ssize(jobs);
        std::shuffle(jobs.begin(), jobs.end(), random);
        for (const auto& job : jobs) {
          if (random() % 16 != 0) job->cancel();
          std::this_thread::yield();
        }
        for (const auto& job : jobs) {
          End end = End::none;
          for (int tries = 0; end == End::none && tries < 300; ++tries) {
            const auto event = job->next(std::chrono::milliseconds(100));
            if (event) end = event->end;
          }
          ASSERT_TRUE(end == End::length || end == End::cancel) << static_cast<int>(end);
          cancelled += end == End::cancel ? 1 : 0;
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  bench.scheduler.stop(false);
  computing.join();
  const Scheduler::Facts facts = bench.scheduler.facts();
  EXPECT_EQ(facts.requests, submitted);
  EXPECT_EQ(facts.cancelled, cancelled);
  EXPECT_EQ(facts.failed, 0);
}

TEST(Scheduler, RunsBesideItsClients) {
  Bench bench({.slots = 3, .ram_pages = 6});
  std::thread computing([&] { bench.scheduler.run(); });
  std::vector<std::thread> clients;
  for (std::int32_t client = 0; client < 4; ++client) {
    clients.emplace_back([&bench, client] {
      for (std::int32_t round = 0; round < 6; ++round) {
        const auto job = bench.scheduler.submit(request(document_and(70 * (round + 1), client), 6));
        if ((client + round) % 3 == 0) job->cancel();
        End end = End::none;
        while (end == End::none) {
          const auto event = job->next(std::chrono::milliseconds(20));
          if (event) end = event->end;
          (void)job->facts();
          (void)bench.scheduler.facts();
        }
        EXPECT_TRUE(end == End::length || end == End::cancel);
        EXPECT_TRUE(bench.scheduler.between_steps([&] { (void)bench.scheduler.last_of(0); }));
      }
    });
  }
  for (std::thread& client : clients) client.join();
  const auto last = bench.scheduler.submit(request(some_ids(20), 1000));
  bench.scheduler.stop(true);
  computing.join();
  EXPECT_EQ(Bench::answer_of(*last).end, End::error);
  EXPECT_EQ(bench.scheduler.submit(request(some_ids(5))), nullptr);
  EXPECT_FALSE(bench.scheduler.between_steps([] {}));
}

}  // namespace
}  // namespace headwater::runtime::testing
