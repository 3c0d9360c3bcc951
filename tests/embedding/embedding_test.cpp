// The C++ examples of docs/embedding.md: what stands between [name] and [/name] is shown there (tools/lint_docs.py), and runs
// here.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <new>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "headwater/headwater.hpp"

namespace headwater::embedding_test {
namespace {

constexpr std::int64_t kLayers = 2, kHeads = 4, kKvHeads = 2, kWidth = 16, kCapacity = 200;

/// Stands for a model: rows that depend on layer and position alone.
struct Model {
  std::vector<float> q, k, v, out;
  std::uint32_t seed = 0;
  std::atomic<bool>* stop_in_layer_1 = nullptr;

  void project(std::int64_t layer, std::int64_t first, std::int64_t n) {
    if (layer == 1 && stop_in_layer_1 != nullptr) *stop_in_layer_1 = true;
    q.clear(), k.clear(), v.clear();
    for (std::int64_t t = first; t < first + n; ++t) {
      std::mt19937 random(static_cast<std::uint32_t>(seed * 100000 + layer * 10000 + t));
      const auto fill = [&](std::vector<float>& rows, std::int64_t heads) {
        for (std::int64_t i = 0; i < heads * kWidth; ++i)
          rows.push_back(static_cast<float>(random() >> 8) * 0x1p-23F - 1.0F);
      };
      fill(q, kHeads), fill(k, kKvHeads), fill(v, kKvHeads);
    }
    out.assign(q.size(), 0.0F);
  }
  /// How many of the drafted tokens are those that the model would have chosen.
  [[nodiscard]] std::int64_t accepted(std::int64_t drafted) const { return drafted - 3; }
};

// [step]
/// A step of all layers. `model` stands for yours: project() fills its q, k and v, [n, heads, width], rotated.
void run(Session& session, const Step& step, Model& model) {
  const std::int64_t first = session.tokens();
  session.begin(step);
  for (std::int64_t layer = 0; layer < session.shape().n_layer; ++layer) {
    model.project(layer, first, step.n);
    session.attend(layer, Rows::token_major(model.q.data(), DType::f32, kHeads, kWidth),
                   Rows::token_major(model.k.data(), DType::f32, kKvHeads, kWidth),
                   Rows::token_major(model.v.data(), DType::f32, kKvHeads, kWidth),
                   MutableRows::token_major(model.out.data(), DType::f32, kHeads, kWidth));
  }
  session.end();
}
// [/step]

// [stop]
/// False where `stop` was set meanwhile, by any thread: the session is then what it was before the step.
bool run_until(std::atomic<bool>& stop, Session& session, const Step& step, Model& model) {
  session.set_interrupt([&stop] { return stop.load(); });
  try {
    run(session, step, model);
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::interrupted) throw;
    session.abort();
    return false;
  }
}
// [/stop]

// [speculate]
/// Decodes drafted tokens in one step and keeps those that the model accepts.
std::int64_t speculate(Session& session, std::int64_t drafted, Model& model) {
  const std::int64_t before = session.tokens();
  run(session, Step::decode(drafted), model);
  const std::int64_t accepted = model.accepted(drafted);  // from the rows of the last layer
  session.truncate(before + accepted);
  return accepted;
}
// [/speculate]

// [prefix]
/// A session that has the document of `path` in it: read from there, or computed once and written.
std::unique_ptr<Session> with_document(const Engine& engine, const Shape& shape, const Options& options,
                                       const std::string& path, Model& model, std::int64_t tokens) {
  try {
    return load(engine, shape, options, path, "my-model-q8");
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument) throw;  // not there, or of another model: made anew
  }
  auto session = engine.open(shape, options);
  run(*session, Step::prefill(tokens), model);
  save(*session, path, "my-model-q8");
  return session;
}
// [/prefix]

// [slots]
/// One token for each of several conversations, a layer at a time.
void decode_slots(std::span<const std::unique_ptr<Session>> slots, std::span<Model> models) {
  for (const auto& slot : slots) slot->begin(Step::decode());
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    std::vector<SequenceCall> calls;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      models[i].project(layer, slots[i]->tokens(), 1);
      SequenceCall call;
      call.session = slots[i].get();
      call.layer = layer;
      call.q = Rows::token_major(models[i].q.data(), DType::f32, kHeads, kWidth);
      call.k = Rows::token_major(models[i].k.data(), DType::f32, kKvHeads, kWidth);
      call.v = Rows::token_major(models[i].v.data(), DType::f32, kKvHeads, kWidth);
      call.out = MutableRows::token_major(models[i].out.data(), DType::f32, kHeads, kWidth);
      calls.push_back(call);
    }
    attend_together(calls);
  }
  for (const auto& slot : slots) slot->end();
}
// [/slots]

// [own_cache]
/// A cache of pages of 16 tokens, [page][token][head][element] for each layer, and the block table of one sequence.
struct Cache {
  std::vector<float> keys[kLayers], values[kLayers];
  std::vector<std::int32_t> table;
  [[nodiscard]] StoredRows of(std::int64_t layer, std::int64_t tokens) const {
    StoredRows rows;
    rows.keys = keys[layer].data(), rows.values = values[layer].data();
    rows.rows = tokens;
    rows.key_row_stride = rows.value_row_stride = kKvHeads * kWidth;
    rows.key_head_stride = rows.value_head_stride = kWidth;
    rows.table = table.data(), rows.table_size = std::ssize(table);
    rows.page_rows = 16, rows.pages = std::ssize(keys[layer]) / (16 * kKvHeads * kWidth);
    rows.key_page_stride = rows.value_page_stride = 16 * kKvHeads * kWidth;
    return rows;
  }
};

/// A step over the rows of the cache, to which the step's own have been added. Options::kv_owner is `caller`.
void run_over(Session& session, const Step& step, const Cache& cache, Model& model) {
  const std::int64_t first = session.tokens();
  session.begin(step);
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    model.project(layer, first, step.n);
    session.attend_stored(layer, Rows::token_major(model.q.data(), DType::f32, kHeads, kWidth),
                          cache.of(layer, first + step.n),
                          MutableRows::token_major(model.out.data(), DType::f32, kHeads, kWidth));
  }
  session.end();
}
// [/own_cache]

// [merge]
/// One softmax over two key sets (FUSE-1): out and lse of a row become those of both.
void merge(float* out, float& lse, const float* other, float other_lse, std::int64_t width) {
  const float m = std::max(lse, other_lse);
  if (std::isinf(m)) return;  // neither saw a key
  const float a = std::exp(lse - m), b = std::exp(other_lse - m);
  for (std::int64_t x = 0; x < width; ++x) out[x] = (a * out[x] + b * other[x]) / (a + b);
  lse = m + std::log(a + b);
}
// [/merge]

// [threads]
/// Options::parallel_for: index 0 here, the others on threads of their own. A host would wake its pool.
void on_my_threads(void* /*context*/, std::int64_t n, void (*body)(void*, std::int64_t), void* argument) {
  std::vector<std::thread> threads;
  for (std::int64_t i = 1; i < n; ++i) threads.emplace_back(body, argument, i);
  body(argument, 0);
  for (std::thread& thread : threads) thread.join();
}
// [/threads]

Options small_options() {
  Options options;
  options.chunk = 16, options.local = 4, options.heavy = 4, options.threads = 2;
  return options;
}

std::unique_ptr<Session> open(const Options& options) {
  return engine().open({.n_layer = kLayers,
                        .n_head = kHeads,
                        .n_head_kv = kKvHeads,
                        .d_head = kWidth,
                        .d_value = kWidth,
                        .capacity = kCapacity},
                       options);
}

/// The output of the last layer in one more decode step: it depends on all that a session holds.
std::vector<float> next_output(Session& session) {
  Model model;
  run(session, Step::decode(), model);
  return model.out;
}

TEST(Embedding, AStoppedStepNeverWas) {
  const auto session = open(small_options());
  const auto never = open(small_options());
  Model model;
  std::atomic<bool> stop{false};
  model.stop_in_layer_1 = &stop;
  EXPECT_FALSE(run_until(stop, *session, Step::prefill(100), model));
  EXPECT_EQ(session->state(), SessionState::empty);
  model.stop_in_layer_1 = nullptr;
  stop = false;
  EXPECT_TRUE(run_until(stop, *session, Step::prefill(90), model));
  run(*never, Step::prefill(90), model);
  EXPECT_EQ(next_output(*session), next_output(*never));
}

TEST(Embedding, DraftsThatAreNotAcceptedNeverWere) {
  const auto session = open(small_options());
  const auto never = open(small_options());
  Model model;
  run(*session, Step::prefill(90), model);
  EXPECT_EQ(speculate(*session, 8, model), 5);
  EXPECT_EQ(session->tokens(), 95);
  run(*never, Step::prefill(90), model);
  run(*never, Step::decode(5), model);
  EXPECT_EQ(next_output(*session), next_output(*never));
}

TEST(Embedding, AnEditedQuestionTakesThePlaceOfTheFirst) {
  Model model, edited;
  edited.seed = 1;
  // [regenerate]
  Options options = small_options();
  options.checkpoints = 2;  // rule h2o: the last two sparse chunks can be taken back
  const auto session = open(options);
  run(*session, Step::prefill(90), model);  // a document
  const std::int64_t question = session->tokens();
  run(*session, Step::prefill(20), model);  // a question: two chunks of 16 tokens or less
  run(*session, Step::decode(), model);     // an answer
  session->truncate(question);              // the user edits the question
  run(*session, Step::prefill(25), edited);
  // [/regenerate]
  const auto never = open(options);
  run(*never, Step::prefill(90), model);
  run(*never, Step::prefill(25), edited);
  EXPECT_EQ(next_output(*session), next_output(*never));
}

/// The last row of n tokens in one dense step over keys from `first` on: outputs and log-sum-exps of all heads.
struct Row {
  std::vector<float> out, lse;
};
Row last_row(std::int64_t first, std::int64_t n) {
  const auto session = open(small_options());
  Model model, asking;
  model.project(0, first, n);
  asking.project(0, 150, 1);  // the same query over every key set
  std::copy(asking.q.begin(), asking.q.end(), model.q.end() - kHeads * kWidth);
  Row row{{}, std::vector<float>(static_cast<std::size_t>(n * kHeads))};
  session->begin(Step::decode(n));
  session->attend(0, Rows::token_major(model.q.data(), DType::f32, kHeads, kWidth),
                  Rows::token_major(model.k.data(), DType::f32, kKvHeads, kWidth),
                  Rows::token_major(model.v.data(), DType::f32, kKvHeads, kWidth),
                  MutableRows::token_major(model.out.data(), DType::f32, kHeads, kWidth),
                  LseOutput::token_major(row.lse.data(), kHeads));
  row.out.assign(model.out.end() - kHeads * kWidth, model.out.end());
  row.lse.erase(row.lse.begin(), row.lse.end() - kHeads);
  return row;
}

TEST(Embedding, TwoKeySetsAreOneSoftmax) {
  Row merged = last_row(0, 40);
  const Row other = last_row(40, 30);
  const Row both = last_row(0, 70);
  for (std::size_t h = 0; h < kHeads; ++h) {
    merge(&merged.out[h * kWidth], merged.lse[h], &other.out[h * kWidth], other.lse[h], kWidth);
    EXPECT_NEAR(merged.lse[h], both.lse[h], 1e-5F);
    for (std::size_t x = 0; x < kWidth; ++x)
      EXPECT_NEAR(merged.out[h * kWidth + x], both.out[h * kWidth + x], 1e-5F) << h << ' ' << x;
  }
}

TEST(Embedding, ThreadsOfTheHostGiveTheSameBits) {
  Options options = small_options();
  const auto own = open(options);
  options.parallel_for = on_my_threads;
  const auto mine = open(options);
  Model model;
  for (Session* session : {own.get(), mine.get()}) run(*session, Step::prefill(90), model);
  EXPECT_EQ(next_output(*own), next_output(*mine));
}

TEST(Embedding, ADocumentIsComputedOnceForManyConversations) {
  Model model, asking[3];
  for (std::uint32_t i = 0; i < 3; ++i) asking[i].seed = i + 1;
  const std::string path =
      testing::TempDir() + "headwater_embedding_" + std::to_string(::getpid()) + ".safetensors";
  const Shape shape = open(small_options())->shape();
  const Engine& cpu = engine();
  // [fork]
  const auto document = with_document(cpu, shape, small_options(), path, model, 90);
  std::vector<std::unique_ptr<Session>> slots;
  for (int i = 0; i < 3; ++i) slots.push_back(document->fork());
  for (std::size_t i = 0; i < 3; ++i) run(*slots[i], Step::prefill(20), asking[i]);  // three questions
  decode_slots(slots, asking);
  // [/fork]
  const auto again = with_document(cpu, shape, small_options(), path, model, 90);
  EXPECT_EQ(again->tokens(), 90);
  EXPECT_EQ(next_output(*again), next_output(*document));
  for (std::size_t i = 0; i < 3; ++i) {
    const auto alone = open(small_options());
    run(*alone, Step::prefill(90), model);
    run(*alone, Step::prefill(20), asking[i]);
    run(*alone, Step::decode(), asking[i]);
    EXPECT_EQ(next_output(*slots[i]), next_output(*alone)) << "slot " << i;
  }
  std::filesystem::remove(path);
}

// [allocator]
/// A budget that several sessions share. Forks on other threads may ask at the same time.
struct Budget {
  std::atomic<std::int64_t> left;
  static void* allocate(void* context, std::size_t bytes, std::size_t alignment) {
    auto& left = static_cast<Budget*>(context)->left;
    const auto size = static_cast<std::int64_t>(bytes);
    if (left.fetch_sub(size) >= size) {
      void* block = ::operator new (bytes, std::align_val_t{alignment}, std::nothrow);
      if (block != nullptr) return block;
    }
    left += size;
    return nullptr;
  }
  static void release(void* context, void* block, std::size_t bytes, std::size_t alignment) {
    ::operator delete (block, std::align_val_t{alignment});
    static_cast<Budget*>(context)->left += static_cast<std::int64_t>(bytes);
  }
};
// [/allocator]

TEST(Embedding, SessionsShareABudget) {
  Options options = small_options();
  options.page = 256;
  const Shape shape = open(options)->shape();
  const std::int64_t one = engine().estimate(shape, options).full.total();
  Budget budget{2 * one + one / 2};
  options.allocator = {Budget::allocate, Budget::release, &budget};
  Model model;
  {
    std::vector<std::unique_ptr<Session>> slots;
    const auto add = [&] {
      slots.push_back(open(options));
      run(*slots.back(), Step::prefill(90), model);
    };
    add(), add();
    EXPECT_THROW(add(), Error);
    slots.erase(slots.begin());
    EXPECT_NO_THROW(add());
  }
  EXPECT_EQ(budget.left.load(), 2 * one + one / 2);
}

// [estimate]
/// The most tokens, up to the shape's capacity, that fit into so many bytes; 0 where none does.
std::int64_t longest_context(const Engine& engine, Shape shape, const Options& options, std::int64_t bytes) {
  std::int64_t fits = 0;
  for (std::int64_t high = shape.capacity; fits < high;) {
    shape.capacity = fits + (high - fits + 1) / 2;
    if (engine.estimate(shape, options).full.total() <= bytes) {
      fits = shape.capacity;
    } else {
      high = shape.capacity - 1;
    }
  }
  return fits;
}
// [/estimate]

TEST(Embedding, TheLongestContextThatFits) {
  Shape shape = open(small_options())->shape();
  shape.capacity = 100000;
  const Options options = small_options();
  const std::int64_t all = engine().estimate(shape, options).full.total();
  EXPECT_EQ(longest_context(engine(), shape, options, all), shape.capacity);
  EXPECT_EQ(longest_context(engine(), shape, options, 100), 0);
  const std::int64_t fits = longest_context(engine(), shape, options, all / 2);
  shape.capacity = fits;
  EXPECT_LE(engine().estimate(shape, options).full.total(), all / 2);
  shape.capacity = fits + 1;
  EXPECT_GT(engine().estimate(shape, options).full.total(), all / 2);
}

TEST(Embedding, ACacheOfYourOwnGivesTheSameBits) {
  Model model;
  Cache cache;
  cache.table = {5, 2, 0, 6, 1, 3, 4};
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    model.project(layer, 0, 112);
    for (auto [from, to] :
         {std::pair{&model.k, &cache.keys[layer]}, std::pair{&model.v, &cache.values[layer]}}) {
      to->resize(from->size());
      constexpr std::ptrdiff_t kPage = 16 * kKvHeads * kWidth;
      for (std::ptrdiff_t page = 0; page < 7; ++page) {
        std::copy_n(from->begin() + page * kPage, kPage,
                    to->begin() + cache.table[static_cast<std::size_t>(page)] * kPage);
      }
    }
  }
  Options options = small_options();
  const auto own = open(options);
  options.kv_owner = KvOwner::caller;
  const auto over = open(options);
  for (const Step& step : {Step::prefill(90), Step::decode(), Step::prefill(20)}) {
    run(*own, step, model);
    const std::vector<float> wanted = model.out;
    run_over(*over, step, cache, model);
    EXPECT_EQ(model.out, wanted);
  }
}

}  // namespace
}  // namespace headwater::embedding_test
