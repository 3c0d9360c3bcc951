// Models with recurrent layers: what a conversation keeps of them beside its rows. Their logits are held to transformers' in
// architectures_test.cpp, their loops to double in kernels_test.cpp.

#include "runtime/model/recurrent_session.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <set>

#include "headwater/error.hpp"
#include "headwater/state.hpp"
#include "tests/model/serving.hpp"

namespace headwater::runtime::testing {
namespace {

using Logits = std::vector<float>;
using Ids = std::vector<std::int32_t>;

constexpr std::int64_t kChunk = 16;
constexpr const char* kNames[] = {"qwen35", "qwen35-wide"};

std::shared_ptr<const GgufFile> file_of(const std::string& name) {
  return std::make_shared<const GgufFile>(GgufFile::open(std::string(ARCHITECTURES "/") + name + ".gguf"));
}

std::shared_ptr<const Model> model_of(const std::string& name, Precision precision = Precision::f32) {
  return Model::load(file_of(name), {precision, 2});
}

Ids ids_of(std::int64_t n, std::int32_t from) {
  Ids ids;
  for (std::int32_t i = 0; i < n; ++i) ids.push_back(3 + (from + i * i * 7 + i) % 60);
  return ids;
}

TransformerOptions sparse(std::int64_t capacity, int slots = 1) {
  TransformerOptions chosen = options(capacity);
  chosen.attention.batch = 4 * kChunk;
  chosen.attention.chunk = kChunk;
  chosen.attention.local = chosen.attention.heavy = 4;
  chosen.attention.page = 256;
  chosen.slots = slots;
  return chosen;
}

/// The logits of the last token.
Logits last(Transformer& transformer, std::int64_t step_tokens) {
  Logits logits(static_cast<std::size_t>(transformer.model().config().vocabulary));
  transformer.logits(step_tokens - 1, 1, logits);
  return logits;
}

/// A turn in calls of so many tokens, then answers: all logits after it.
Logits talk(Transformer& transformer, const Ids& ids, std::int64_t most, int answers, int slot = 0) {
  const auto n = std::ssize(ids);
  std::int64_t count = 0;
  for (std::int64_t done = 0; done < n; done += count) {
    count = std::min(most, n - done);
    transformer.run(Step::prefill(count, done == 0 && count < n ? n : 0),
                    std::span(ids).subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(count)),
                    slot);
  }
  Logits all = last(transformer, count);
  for (std::int32_t i = 0; i < answers; ++i) {
    const std::int32_t id = 5 + i;
    transformer.run(Step::decode(), {&id, 1}, slot);
    const Logits one = last(transformer, 1);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "done";
}

class Recurrent : public ::testing::TestWithParam<const char*> {
 protected:
  std::shared_ptr<const Model> model_ = model_of(GetParam());
};
INSTANTIATE_TEST_SUITE_P(, Recurrent, ::testing::ValuesIn(kNames));

// Finds: rows of the convolution that are kept from a wrong place, also where a call has fewer tokens than it; a state that a call
// begins anew; threads that share a matrix.
TEST_P(Recurrent, BitsDoNotDependOnCallsAndThreads) {
  for (const Precision precision : {Precision::f32, Precision::bf16, Precision::int8}) {
    if (const std::string missing = missing_for(precision); !missing.empty()) {
      GTEST_LOG_(INFO) << "not in " << precision_name(precision) << ": no " << missing;
      continue;
    }
    const auto model = model_of(GetParam(), precision);
    Transformer once(model, sparse(300));
    const Ids ids = ids_of(150, 1);
    const Logits wanted = talk(once, ids, 4 * kChunk, 5);
    for (const int threads : {1, 3}) {
      for (const std::int64_t most : {kChunk, 2 * kChunk, 3 * kChunk}) {
        TransformerOptions chosen = sparse(300);
        chosen.attention.threads = threads;
        Transformer other(model, chosen);
        EXPECT_TRUE(talk(other, ids, most, 5) == wanted) << threads << " " << most;
      }
    }
  }
}

// Calls of one, two, ... tokens: the state is that of all tokens, whatever the sums of projections are.
TEST_P(Recurrent, ShortCallsKeepTheState) {
  TransformerOptions chosen = options(200);
  chosen.attention.dense = true;
  Transformer once(model_, chosen);
  const Ids ids = ids_of(60, 2);
  const Logits wanted = talk(once, ids, 60, 2);
  for (const std::int64_t most : {1, 2, 3, 4, 7}) {
    Transformer other(model_, chosen);
    const Logits got = talk(other, ids, most, 2);
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], wanted[i], 2e-3) << most;
  }
}

TEST_P(Recurrent, ForksGoOnByThemselves) {
  Transformer parent(model_, sparse(300));
  const Ids first = ids_of(70, 3);
  talk(parent, first, 4 * kChunk, 3);
  Transformer fork(parent, 0);
  Transformer second(fork, 0);
  const Logits of_parent = talk(parent, ids_of(40, 4), 4 * kChunk, 2);
  const Logits of_fork = talk(fork, ids_of(40, 5), 4 * kChunk, 2);
  const Logits of_second = talk(second, ids_of(40, 4), 4 * kChunk, 2);
  for (const auto& [text, got] : {std::pair{4, of_parent}, {5, of_fork}, {4, of_second}}) {
    Transformer alone(model_, sparse(300));
    talk(alone, first, 4 * kChunk, 3);
    EXPECT_TRUE(talk(alone, ids_of(40, text), 4 * kChunk, 2) == got) << text;
  }
}

TEST_P(Recurrent, SlotsDecodeTogetherAsAlone) {
  constexpr int kSlots = 3;
  Transformer together(model_, sparse(200, kSlots));
  std::vector<Logits> wanted;
  for (int slot = 0; slot < kSlots; ++slot) {
    const Ids ids = ids_of(20 + 13 * slot, slot);
    talk(together, ids, 4 * kChunk, 0, slot);
    Transformer alone(model_, sparse(200));
    wanted.push_back(talk(alone, ids, 4 * kChunk, 4));
  }
  const auto vocabulary = static_cast<std::size_t>(model_->config().vocabulary);
  for (std::int32_t i = 0; i < 4; ++i) {
    together.decode(std::vector<SlotToken>{{2, 5 + i}, {0, 5 + i}, {1, 5 + i}});
    Logits logits(kSlots * vocabulary);
    float* const outs[] = {logits.data() + 2 * vocabulary, logits.data(), logits.data() + vocabulary};
    together.ask_logits(kSlots);
    together.take_logits(outs);
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      const auto from =
          wanted[slot].begin() + static_cast<std::ptrdiff_t>((static_cast<std::size_t>(i) + 1) * vocabulary);
      EXPECT_TRUE(std::equal(from, from + static_cast<std::ptrdiff_t>(vocabulary),
                             logits.begin() + static_cast<std::ptrdiff_t>(slot * vocabulary)))
          << slot << " " << i;
    }
  }
}

TEST_P(Recurrent, IsTruncatedToNothingOrNotAtAll) {
  Transformer transformer(model_, sparse(200));
  const Ids ids = ids_of(50, 6);
  const Logits wanted = talk(transformer, ids, 4 * kChunk, 2);
  EXPECT_EQ(refusal([&] { transformer.truncate(51); }),
            "truncate to 51 of 52 tokens in a model with recurrent layers; allowed: 0, 52");
  transformer.truncate(52);
  const Logits after = talk(transformer, ids_of(20, 7), 4 * kChunk, 1);
  for (const bool by_reset : {false, true}) {
    by_reset ? transformer.reset() : transformer.truncate(0);
    EXPECT_TRUE(talk(transformer, ids, 4 * kChunk, 2) == wanted);
    EXPECT_TRUE(talk(transformer, ids_of(20, 7), 4 * kChunk, 1) == after);
  }
  // A fork that is there keeps its state while the other one is emptied.
  Transformer fork(transformer, 0);
  transformer.reset();
  talk(transformer, ids, 4 * kChunk, 2);
  talk(transformer, ids_of(20, 7), 4 * kChunk, 1);
  EXPECT_TRUE(talk(fork, ids_of(9, 8), 4 * kChunk, 1) == talk(transformer, ids_of(9, 8), 4 * kChunk, 1));
  transformer.session().begin(Step::decode());
  EXPECT_THAT(refusal([&] { transformer.session().abort(); }),
              ::testing::HasSubstr("abort() is not offered"));
}

TEST_P(Recurrent, ASavedConversationGoesOn) {
  Transformer transformer(model_, sparse(200));
  talk(transformer, ids_of(50, 9), 4 * kChunk, 2);
  const std::string path = ::testing::TempDir() + "recurrent-" + GetParam() + ".safetensors";
  save(transformer.session(), path, "m");
  const Logits wanted = talk(transformer, ids_of(30, 1), 4 * kChunk, 2);
  Transformer other(model_, sparse(200));
  other.exchange(0, other.load_session(path, "m", {}));
  EXPECT_TRUE(talk(other, ids_of(30, 1), 4 * kChunk, 2) == wanted);
  // Rows without states, and states that nobody asks for.
  const Shape shape = other.session().shape();
  EXPECT_THAT(refusal([&] { (void)load(other.engine(), shape, sparse(200).attention, path, "m"); }),
              ::testing::HasSubstr("tensor 'recurrent' is none of such a session"));
  save(rows_of(other.session()), path, "m");
  EXPECT_THAT(refusal([&] { (void)other.load_session(path, "m", {}); }), ::testing::HasSubstr("recurrent"));
  std::filesystem::remove(path);
}

// Finds: the number of a layer in the session taken for the model's, or the other way round.
TEST(RecurrentLayers, AreNumberedAsInTheModel) {
  const auto model = model_of("qwen35");  // layers 1 and 3 of 0 .. 4 attend
  std::vector<Logits> said;
  for (const std::vector<std::int64_t>& dense :
       std::vector<std::vector<std::int64_t>>{{}, {0, 1}, {2, 3, 4}, {1, 3}}) {
    TransformerOptions chosen = sparse(300);
    chosen.attention.dense_layers = dense;
    Transformer transformer(model, chosen);
    std::vector<std::int64_t> attend;
    std::ranges::copy_if(dense, std::back_inserter(attend),
                         [](std::int64_t layer) { return layer % 2 == 1; });
    EXPECT_EQ(transformer.options().dense_layers, attend);
    EXPECT_EQ(transformer.session().shape().n_layer, 2);
    std::set<std::int64_t> attends;
    std::set<std::int64_t> all;
    std::map<std::int64_t, std::size_t> chunks;  // of a layer of the session
    transformer.session().set_observer([&](const ChunkRecord& record) { ++chunks[record.layer]; });
    transformer.set_observer([&](const LayerView& view) {
      (view.stage == LayerView::Stage::attention ? attends : all).insert(view.layer);
    });
    const Ids ids = ids_of(64, 1);
    said.push_back(talk(transformer, ids, 64, 0));
    EXPECT_EQ(attends, (std::set<std::int64_t>{1, 3}));
    EXPECT_EQ(all.size(), 5U);
    for (const std::int64_t layer : {1, 3}) {
      const bool is_dense = std::ranges::count(dense, layer) > 0;
      EXPECT_EQ(chunks[layer / 2], is_dense ? 1U : 4U) << layer;
    }
  }
  TransformerOptions chosen = sparse(300);
  chosen.attention.dense_layers = {5};
  EXPECT_THAT(refusal([&] { Transformer(model, chosen); }), ::testing::HasSubstr("dense_layers"));
  chosen.attention.dense_layers = {};
  chosen.attention.dense = true;
  Transformer dense(model, chosen);
  EXPECT_TRUE(talk(dense, ids_of(64, 1), 64, 0) == said.back());
  EXPECT_EQ((std::set<Logits>{said.begin(), said.end()}.size()), said.size());
}

TEST(RecurrentLayers, PairsAreThoseOfLayersThatAttend) {
  const auto model = model_of("qwen35");
  TransformerOptions chosen = sparse(300);
  chosen.attention.dense = true;
  Transformer transformer(model, chosen);
  Conversation conversation(transformer, 0);
  double most = 0;
  const auto ids = ids_of(100, 1);
  conversation.feed(ids, [&](double done) { most = std::max(most, done); });
  EXPECT_EQ(conversation.pairs().computed, 5050U);
  EXPECT_EQ(conversation.pairs().dense, 5050U);
  EXPECT_EQ(most, 1);
}

TEST(RecurrentLayers, AServerUsesAConversationAsAWhole) {
  const auto file = file_of("qwen35");
  const auto model = Model::load(file, {Precision::f32, 2});
  const auto tokenizer = Tokenizer::from_gguf(*file);
  Transformer transformer(model, sparse(600));
  PrefixCache cache(transformer, {1, 1000, {}, 0, "tests"});
  Scheduler scheduler(transformer, *tokenizer, cache, {8, 64, false, {}});
  const auto ask = [&](const Ids& ids, bool use_cache = true) {
    CompletionRequest one = request(ids);
    one.use_cache = use_cache;
    one.atlas = true;
    const auto job = scheduler.submit(one);
    while (scheduler.run_step()) {
    }
    return Bench::answer_of(*job);
  };
  Ids ids = ids_of(200, 1);
  const Bench::Answer first = ask(ids);
  EXPECT_EQ(first.facts.atlas->layers(), 2);
  ids.insert(ids.end(), first.ids.begin(), first.ids.end());
  for (const std::int32_t id : ids_of(40, 2)) ids.push_back(id);
  const Bench::Answer next = ask(ids);
  EXPECT_EQ(next.facts.cached_tokens, 203);  // the last token of an answer was never read
  EXPECT_EQ(next.ids, ask(ids, false).ids);
  ids[150] ^= 1;
  EXPECT_EQ(ask(ids).facts.cached_tokens, 0);
}

}  // namespace
}  // namespace headwater::runtime::testing
