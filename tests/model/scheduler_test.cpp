// Many requests over one model: what each is answered, alone and in company, and what ends them.

#include "runtime/serve/scheduler.hpp"

#include <atomic>
#include <cmath>
#include <random>
#include <set>
#include <thread>

#include "tests/model/serving.hpp"

namespace headwater::runtime::testing {
namespace {

/// What submit() says of a request, "" where it takes it.
std::string refusal_of(Bench& bench, const CompletionRequest& one) {
  try {
    (void)bench.scheduler.submit(one);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
}

TEST(Scheduler, AnswersAsAConversationDoes) {
  Bench bench({});
  Transformer other(bundled(Precision::f32), Bench::transformer_options({}));
  for (const std::int64_t n : {1, 31, 32, 33, 40, 41, 100, 300}) {
    const Bench::Answer answer = bench.ask(cold(request(some_ids(n), 6)));
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
  CompletionRequest stopped = cold(request(some_ids(40), 20));
  const std::string text = bench.ask(stopped).text;
  ASSERT_GT(text.size(), 8U);
  stopped.stop = {text.substr(5, 3)};
  const Bench::Answer answer = bench.ask(stopped);
  EXPECT_EQ(answer.end, End::stop);
  EXPECT_EQ(answer.text, text.substr(0, text.find(stopped.stop[0])));
}

TEST(Scheduler, EndsWithTheTokenThatEndsTexts) {
  Bench bench({.capacity = 64});
  CompletionRequest one = cold(request(some_ids(40), 20));
  one.ignore_end = false;
  CompletionRequest held = one;
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
  const struct {
    const char* named;
    std::vector<std::int32_t> prompt;
    std::function<void(CompletionRequest&)> change;
  } cases[] = {{"1 .. 64", {}, {}},
               {"1 .. 64", some_ids(65), {}},
               {"token id", {-1}, {}},
               {"0 .. 4095", {4096}, {}},
               {"max_tokens", {5}, [](auto& one) { one.max_tokens = -2; }},
               {"stop", {5}, [](auto& one) { one.stop = {""}; }},
               {"temperature", {5}, [](auto& one) { one.sampling.temperature = -1; }},
               {"top_logprobs", {5}, [](auto& one) { one.top_logprobs = -1; }},
               {"dense_tail", {5}, [](auto& one) { one.dense_tail = -1; }},
               {"logit_bias", {5}, [](auto& one) {
                  one.sampling.logit_bias = {{4096, 1.0}};
                }}};
  for (const auto& [named, prompt, change] : cases) {
    CompletionRequest one = request(prompt);
    if (change) change(one);
    EXPECT_THAT(refusal_of(bench, one), ::testing::HasSubstr(named));
  }
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
  bench.run_steps(5);
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
  bench.run_steps(4);
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
    CompletionRequest& one =
        requests.emplace_back(cold(request(document_and(n, static_cast<std::int32_t>(n % 50)), 3 + n % 7)));
    one.sampling.temperature = n % 2 == 0 ? 0.8 : 0.0;
    one.sampling.seed = static_cast<std::uint64_t>(n);
    one.sampling.repeat_penalty = n == 90 ? 1.3 : 1.0;
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
  bench.run_steps(4);
  const auto prompt = bench.scheduler.submit(request(document_and(1200, 1)));
  const Scheduler::Facts before = bench.scheduler.facts();
  while (bench.scheduler.facts().prefill_steps < before.prefill_steps + 30)
    ASSERT_TRUE(bench.scheduler.run_step());
  const std::int64_t tokens = bench.scheduler.facts().decode_steps - before.decode_steps;
  EXPECT_GE(tokens, 29 * 10);
  EXPECT_LE(tokens, 30 * 10 + 1);
}

// A request's own rule and memory give the bits of a server that has them for all requests.
TEST(Scheduler, ARequestMayHaveItsOwnRule) {
  const auto with_rule = [](std::int32_t question, const PromptRule& rule) {
    CompletionRequest asked = request(document_and(400, question));
    asked.rule = rule;
    return asked;
  };
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
    const Bench::Answer got = bench.ask(with_rule(1, one.rule));
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
    EXPECT_EQ(bench.ask(with_rule(2, same)).facts.cached_tokens, 384);
  }
  const std::pair<PromptRule, const char*> refused[] = {
      {{.memory = 0}, "memory is 0; allowed: 1 .. 2147483647"},
      {{.memory = std::int64_t{1} << 31}, "memory is 2147483648; allowed: 1 .. 2147483647"},
      {{.dense = true, .memory = 8}, "prefill is dense and has no memory sets"},
      {{.dense = true, .select = Select::h2o}, "prefill is dense and has no memory sets"}};
  for (const auto& [rule, message] : refused) {
    EXPECT_THAT(refusal_of(bench, with_rule(1, rule)), ::testing::HasSubstr(message));
  }
}

TEST(Scheduler, StopsAfterWhatIsThereOrAtOnce) {
  for (const bool at_once : {false, true}) {
    Bench bench({.queue = 3});
    std::vector<std::shared_ptr<Completion>> jobs;
    for (const std::int32_t id : {5, 6, 7}) jobs.push_back(bench.scheduler.submit(request(all_of(id, 100))));
    bench.run_steps(3);
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
