// STATE-8, STATE-10: what the log takes back, against copies of the stores.

#include "core/undo_log.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace headwater::core {
namespace {

constexpr std::int64_t kLayers = 2, kCapacity = 4000;

/// Stores of two layers, and chunks that build sets and let their scores grow at random.
class Stores {
 public:
  Stores(std::int64_t heads, std::int64_t local, std::int64_t heavy, std::int64_t checkpoints, ScoreType type)
      : heads_(heads),
        scores_(kLayers, heads, kCapacity, type),
        sets_(kLayers, heads, local, heavy, kCapacity),
        log_(sets_, scores_, kLayers, kCapacity, checkpoints) {}

  /// What is seen of both layers.
  struct Copy {
    std::vector<char> scores;
    std::vector<std::int32_t> sets;
    std::vector<std::int64_t> counts;
    bool operator==(const Copy&) const = default;
  };
  Copy copy() {
    Copy all;
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      log_.apply(layer);
      for (std::int64_t head = 0; head < heads_; ++head) {
        const std::int32_t* set = sets_.entries(layer, head);
        all.sets.insert(all.sets.end(), set, set + sets_.width());
        const ScoreView view = scores_.view(layer);
        const auto bytes = scores_.element_bytes();
        const char* row = static_cast<const char*>(view.data) + head * view.head_stride * bytes;
        all.scores.insert(all.scores.end(), row, row + tokens_ * bytes);
      }
      all.counts.insert(all.counts.end(), {sets_.layer(layer).count, sets_.layer(layer).built_at});
    }
    return all;
  }

  /// A step of whole chunks; it ends early, inside chunk `fail`, where one is named: sets of half the heads, no scores.
  void step(std::int64_t chunks, std::int64_t rows, std::int64_t fail = -1) {
    chunks_.clear();
    for (std::int64_t c = 0; c < chunks; ++c)
      chunks_.push_back({tokens_ + c * rows, tokens_ + (c + 1) * rows, ChunkMode::sparse});
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      log_.apply(layer);
      log_.open_layer(layer, chunks_);
      for (std::int64_t c = 0; c < chunks; ++c) {
        const bool failed = c == fail && layer == kLayers - 1;
        compute(layer, chunks_[static_cast<std::size_t>(c)], failed ? heads_ / 2 : heads_, !failed);
        if (failed) return;
      }
    }
  }
  void end() {
    log_.keep_step(std::ssize(chunks_));
    tokens_ = chunks_.back().end;
  }
  void abort() { log_.undo_step(); }
  void drop(std::int64_t chunks, std::int64_t tokens) {
    log_.undo_chunks(chunks);
    tokens_ = tokens;
  }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t bytes() const { return log_.bytes(); }

 private:
  void compute(std::int64_t layer, const Chunk& chunk, std::int64_t heads, bool grow) {
    const std::int64_t n = chunk.end - chunk.begin;
    std::vector<std::uint32_t> keys(kCapacity);
    std::vector<std::int32_t> chosen(static_cast<std::size_t>(sets_.width()) + 1);
    std::vector<float> sums(static_cast<std::size_t>(std::max(n, sets_.width())));
    const auto draw = [&] {
      for (float& sum : sums) sum = uniform_(random_);
      return sums.data();
    };
    for (std::int64_t head = 0; head < heads; ++head) scores_.initialise(layer, head, chunk.begin, n, draw());
    if (chunk.begin == 0) return;
    for (std::int64_t head = 0; head < heads; ++head) {
      log_.keep_set(layer, head, chunk.begin);
      sets_.build_head(layer, head, chunk.begin, scores_, keys.data(), chosen.data());
      if (grow || head > 0) log_.keep_scores(layer, head, chunk.begin);
    }
    if (!grow) return;
    sets_.finish(layer, chunk.begin);
    for (std::int64_t head = 0; head < heads; ++head)
      scores_.accumulate(layer, head, sets_.entries(layer, head), sets_.count(layer), draw());
  }

  std::int64_t heads_;
  ScoreStore scores_;
  MemorySets sets_;
  UndoLog log_;
  std::vector<Chunk> chunks_;
  std::int64_t tokens_ = 0;
  std::mt19937 random_{7};
  std::uniform_real_distribution<float> uniform_{0.0F, 2.0F};
};

struct Size {
  std::int64_t heads, local, heavy;
};
constexpr Size kSizes[] = {{1, 0, 3}, {4, 3, 2}, {3, 100, 155}, {3, 100, 156}, {2, 100, 157}, {70, 2, 2}};

TEST(UndoLog, AbortedStepsLeaveNothing) {
  for (const Size& size : kSizes) {
    for (const std::int64_t checkpoints : {0, 3}) {
      for (const ScoreType type : {ScoreType::bf16, ScoreType::f32}) {
        Stores stores(size.heads, size.local, size.heavy, checkpoints, type);
        const Stores::Copy empty = stores.copy();
        stores.step(4, 90);
        stores.abort();
        EXPECT_TRUE(stores.copy() == empty);
        stores.step(4, 90);
        stores.end();
        const Stores::Copy before = stores.copy();
        for (const std::int64_t fail : {-1, 0, 1, 3}) {
          stores.step(4, 70, fail);
          stores.abort();
          EXPECT_TRUE(stores.copy() == before) << size.heads << " heads, fails in chunk " << fail;
        }
        stores.step(3, 70, 1);  // aborted, and not looked at before the next step
        stores.abort();
        stores.step(2, 70);
        stores.abort();
        EXPECT_TRUE(stores.copy() == before);
      }
    }
  }
}

TEST(UndoLog, CheckpointsComeBack) {
  for (const Size& size : kSizes) {
    Stores stores(size.heads, size.local, size.heavy, 3, ScoreType::bf16);
    stores.step(9, 60);
    stores.end();
    std::vector<Stores::Copy> after;  // each of three steps of one chunk
    std::vector<std::int64_t> tokens;
    const auto grow = [&] {
      after.push_back(stores.copy());
      tokens.push_back(stores.tokens());
      stores.step(1, 50);
      stores.end();
    };
    const auto back = [&](std::size_t steps) {
      const std::size_t left = after.size() - steps;
      stores.drop(static_cast<std::int64_t>(steps), tokens[left]);
      const Stores::Copy copy = after[left];
      after.resize(left), tokens.resize(left);
      return copy;
    };
    grow(), grow(), grow();
    stores.step(7, 40, 4);
    stores.abort();
    const Stores::Copy one = back(1);
    EXPECT_TRUE(one == stores.copy());
    const Stores::Copy two = back(2);
    EXPECT_TRUE(two == stores.copy());
    stores.step(1, 30);  // in the place of dropped tokens
    stores.end();
    grow(), grow(), grow();
    const Stores::Copy three = back(3);
    stores.step(2, 30);
    stores.abort();
    EXPECT_TRUE(three == stores.copy());
  }
}

TEST(UndoLog, BytesAreThoseOfTheRecords) {
  for (const std::int64_t checkpoints : {0, 1, 5}) {
    const std::int64_t entries = kLayers * 4 * 5;
    const Stores bf16(4, 3, 2, checkpoints, ScoreType::bf16), f32(4, 3, 2, checkpoints, ScoreType::f32);
    const std::int64_t least = entries * (4 + (2 * checkpoints + 1) * 6);
    EXPECT_GE(bf16.bytes(), least);
    EXPECT_LT(bf16.bytes(), least + 1024);
    EXPECT_EQ(f32.bytes() - bf16.bytes(), entries * (2 * checkpoints + 1) * 2);
  }
}

}  // namespace
}  // namespace headwater::core
