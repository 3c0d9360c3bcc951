// Many requests over one model: what each is answered, alone, in company, from the cache, from files.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <thread>

#include "headwater/error.hpp"
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
    chosen.attention.local = 8;
    chosen.attention.heavy = 16;
    chosen.attention.select = setup.select;
    chosen.attention.page = 256;
    chosen.slots = setup.slots;
    return chosen;
  }
  static PrefixCache::Options cache_options(const Serving& setup) {
    return {1,
            setup.ram_pages,
            setup.directory,
            setup.disk_bytes,
            setup.fingerprint,
            setup.select == Select::h2o};
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
      {{"\n"}, {"\n"}, "", true},
      {{"END"}, {"EN"}, "EN", false},
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
    EXPECT_EQ(answer.facts.steps, conversation.steps());
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
        CacheCase{Select::sketches, 32, 255}, CacheCase{Select::sketches, 1024, 2100}}) {
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
  dense.dense = true;
  EXPECT_EQ(bench.ask(dense).facts.cached_tokens, 0);
  EXPECT_EQ(bench.ask(dense).facts.cached_tokens, 349);
  CompletionRequest none = request(document_and(340, 2));
  none.use_cache = false;
  EXPECT_EQ(bench.ask(none).facts.cached_tokens, 0);
  // Fewer than 64 tokens are no beginning.
  EXPECT_EQ(bench.ask(request(document_and(63, 2))).facts.cached_tokens, 0);
  EXPECT_EQ(bench.ask(request(document_and(64, 3))).facts.cached_tokens, 64);
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
