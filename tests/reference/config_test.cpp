#include "reference/config.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "tests/reference/support.hpp"

/// Clauses: CFG-1, CFG-2, CFG-3, CFG-4, CFG-5, SEL-1, STATE-10.
namespace headwater::reference {
namespace {

using test::expect_error;
using test::kInfF;
using test::kNaN;
using test::kNaNF;

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kPositions = 2147483647;

Shape small_shape() {
  Shape shape;
  shape.n_layer = 2;
  shape.n_head = 6;
  shape.n_head_kv = 3;
  shape.d_head = 16;
  shape.d_value = 8;
  shape.capacity = 100;
  return shape;
}

void expect_rejected(const Shape& shape, const std::vector<std::string>& parts) {
  expect_error(ErrorCode::invalid_argument, parts, [&] { validate(shape); });
  expect_error(ErrorCode::invalid_argument, parts, [&] { static_cast<void>(resolve(shape, Options{})); });
}

void expect_rejected(const Options& options, const std::vector<std::string>& parts) {
  expect_error(ErrorCode::invalid_argument, parts, [&] { validate(small_shape(), options); });
  expect_error(ErrorCode::invalid_argument, parts,
               [&] { static_cast<void>(resolve(small_shape(), options)); });
}

TEST(Config, CFG_1_SizesHaveLimits) {
  struct Field {
    const char* name;
    std::int64_t Shape::*member;
    std::int64_t most;
  };
  const Field fields[] = {
      {"n_layer", &Shape::n_layer, 65536},     {"n_head", &Shape::n_head, 65536},
      {"n_head_kv", &Shape::n_head_kv, 65536}, {"d_head", &Shape::d_head, 65536},
      {"d_value", &Shape::d_value, 65536},     {"capacity", &Shape::capacity, kPositions}};
  for (const Field& field : fields) {
    SCOPED_TRACE(field.name);
    Shape shape = small_shape();
    shape.n_head = 65536;
    shape.n_head_kv = 1;
    shape.*field.member = 1;
    shape.n_head_kv = 1;
    EXPECT_NO_THROW(validate(shape));
    shape.*field.member = field.most;
    EXPECT_NO_THROW(validate(shape));
    for (const std::int64_t value : {std::int64_t{0}, std::int64_t{-1}, kMin, field.most + 1, kMax}) {
      shape.*field.member = value;
      expect_rejected(shape, {std::string(field.name) + " = " + std::to_string(value), "1 to",
                              std::to_string(field.most)});
    }
  }
}

TEST(Config, CFG_1_HeadsDivide) {
  Shape shape = small_shape();
  for (const std::int64_t heads_kv : {1, 2, 3, 6}) {
    shape.n_head_kv = heads_kv;
    EXPECT_NO_THROW(validate(shape));
  }
  for (const std::int64_t heads_kv : {4, 5, 7, 12}) {
    shape.n_head_kv = heads_kv;
    expect_rejected(shape, {"n_head_kv = " + std::to_string(heads_kv), "divisor of n_head = 6"});
  }
}

TEST(Config, CFG_1_UnknownTypes) {
  Shape shape = small_shape();
  for (const int type : {0, 1, 2}) {
    shape.kv_type = static_cast<DType>(type);
    EXPECT_NO_THROW(validate(shape));
  }
  shape.kv_type = static_cast<DType>(3);
  expect_rejected(shape, {"kv_type = 3", "F32", "F16", "BF16"});

  Options options;
  options.score_type = static_cast<ScoreType>(1);
  options.schedule = static_cast<Schedule>(1);
  EXPECT_NO_THROW(validate(small_shape(), options));
  options.score_type = static_cast<ScoreType>(2);
  expect_rejected(options, {"score_type = 2", "BF16", "F32"});
  options = Options{};
  options.schedule = static_cast<Schedule>(2);
  expect_rejected(options, {"schedule = 2", "layer-major", "chunk-major"});
}

TEST(Config, CFG_1_ProductsFitInBytes) {
  // 2^16 layers of 2^31 - 1 tokens: 65536 bytes for each token and layer are the most that fit below 2^63.
  Shape shape;
  shape.n_layer = 65536;
  shape.capacity = kPositions;
  shape.n_head = 1;
  shape.n_head_kv = 1;
  shape.d_head = 8192;
  shape.d_value = 8192;
  EXPECT_NO_THROW(validate(shape));
  shape.d_value = 8193;
  expect_rejected(shape, {"n_head_kv * (d_head + d_value)", "2^63"});
  shape.kv_type = DType::bf16;
  shape.d_head = 16384;
  shape.d_value = 16384;
  EXPECT_NO_THROW(validate(shape));
  shape.d_head = 16385;
  expect_rejected(shape, {"n_head_kv * (d_head + d_value)", "2^63"});
  shape.d_head = 8192;
  shape.d_value = 8192;
  shape.n_head = 2;
  shape.n_head_kv = 2;
  EXPECT_NO_THROW(validate(shape));
  shape.n_head = 3;
  shape.n_head_kv = 3;
  expect_rejected(shape, {"n_head_kv", "2^63"});

  // Layers of their own widths: the sum over all of them counts, at most 16384 here.
  const Shape two{.n_layer = 2, .n_head = 65536, .n_head_kv = 65536, .capacity = kPositions};
  Options options;
  options.layers = {{.d_head = 1, .d_value = 16381}, {.d_head = 1, .d_value = 1}};
  EXPECT_NO_THROW(validate(two, options));
  options.layers[1].d_value = 2;
  expect_error(ErrorCode::invalid_argument, {"n_head_kv * (d_head + d_value)", "2^63"},
               [&] { validate(two, options); });

  // The scores: 4 bytes for each query head.
  shape.n_head_kv = 1;
  shape.d_head = 1;
  shape.d_value = 1;
  shape.n_head = 16384;
  EXPECT_NO_THROW(validate(shape));
  shape.n_head = 16385;
  expect_rejected(shape, {"capacity * n_head * score", "2^63"});
}

TEST(Config, CFG_1_OptionsHaveLimits) {
  struct Field {
    const char* name;
    std::int64_t Options::*member;
    std::int64_t least;
  };
  const Field fields[] = {{"batch", &Options::batch, 1},
                          {"chunk", &Options::chunk, 1},
                          {"local", &Options::local, 0},
                          {"heavy", &Options::heavy, 0}};
  for (const Field& field : fields) {
    SCOPED_TRACE(field.name);
    Options options;
    options.local = 0;
    options.heavy = 0;
    options.*field.member = field.least;
    EXPECT_NO_THROW(validate(small_shape(), options));
    options.*field.member = kPositions;
    EXPECT_NO_THROW(validate(small_shape(), options));
    options.local = 9;  // so that no sum says first what the field should
    options.heavy = 9;
    for (const std::int64_t value : {field.least - 1, std::int64_t{-5}, kMin, kPositions + 1, kMax}) {
      options.*field.member = value;
      expect_rejected(options, {std::string(field.name) + " = " + std::to_string(value),
                                std::to_string(field.least) + " to 2147483647"});
    }
  }
  Options options;
  options.local = 1;
  options.heavy = kPositions - 1;
  options.clamp = false;
  EXPECT_NO_THROW(static_cast<void>(resolve(small_shape(), options)));
  options.local = 2;
  expect_error(ErrorCode::invalid_argument, {"local + heavy = 2147483648", "2147483647"},
               [&] { static_cast<void>(resolve(small_shape(), options)); });
  options.clamp = true;  // CFG-3: clamped, never rejected
  EXPECT_EQ(resolve(small_shape(), options).memory(), options.chunk - 1);
}

TEST(Config, CFG_1_Threads) {
  Options options;
  for (const int threads : {0, 1, 512}) {
    options.threads = threads;
    EXPECT_EQ(resolve(small_shape(), options).threads, 1);
  }
  for (const int threads : {-1, 513}) {
    options.threads = threads;
    expect_rejected(options, {"threads = " + std::to_string(threads), "0 to 512"});
  }
}

TEST(Config, CFG_1_LogitOptions) {
  Options options;
  options.scale = -0.25;
  options.softcap = 0.0;
  EXPECT_NO_THROW(validate(small_shape(), options));
  options.scale = kNaN;
  expect_rejected(options, {"scale = nan", "finite"});
  options.scale = test::kInf;
  expect_rejected(options, {"scale = inf", "finite"});
  options = Options{};
  options.softcap = -1e-9;
  expect_rejected(options, {"softcap = -0.0", "at least 0"});
  options.softcap = kNaN;
  expect_rejected(options, {"softcap = nan"});
  options.softcap = test::kInf;
  expect_rejected(options, {"softcap = inf"});
}

TEST(Config, CFG_1_OneSinkAndSlopePerHead) {
  Options options;
  options.sinks = {0.0F, -kInfF, 1.0F, 2.0F, -3.0F, 4.0F};
  options.alibi = {0.0F, 1.0F, -1.0F, 2.0F, -3.0F, 4.0F};
  EXPECT_NO_THROW(validate(small_shape(), options));
  for (const std::size_t size : {1U, 5U, 7U}) {
    options = Options{};
    options.sinks.assign(size, 0.0F);
    expect_rejected(options, {"sinks.size = " + std::to_string(size), "0 or n_head = 6"});
    options = Options{};
    options.alibi.assign(size, 0.0F);
    expect_rejected(options, {"alibi.size = " + std::to_string(size), "0 or n_head = 6"});
  }
  for (const float value : {kInfF, kNaNF}) {
    options = Options{};
    options.sinks.assign(6, 0.0F);
    options.sinks[5] = value;
    expect_rejected(options, {"sinks[5] = ", "finite or -inf"});
    options.sinks[0] = value;
    expect_rejected(options, {"sinks[0] = ", "finite or -inf"});
  }
  for (const float value : {kInfF, -kInfF, kNaNF}) {
    options = Options{};
    options.alibi.assign(6, 0.0F);
    options.alibi[5] = value;
    expect_rejected(options, {"alibi[5] = ", "finite"});
    options.alibi[0] = value;
    expect_rejected(options, {"alibi[0] = ", "finite"});
  }
}

TEST(Config, DefaultsAreThoseOfTheSpec) {
  Shape shape = small_shape();
  shape.d_head = 64;
  const EffectiveOptions effective = resolve(shape, Options{});
  EXPECT_EQ(effective.batch, 4096);
  EXPECT_EQ(effective.chunk, 1024);
  EXPECT_EQ(effective.local, 256);
  EXPECT_EQ(effective.heavy, 256);
  EXPECT_EQ(effective.pinned, 0);
  EXPECT_EQ(effective.dense_below, 0);
  EXPECT_TRUE(effective.dense_layers.empty());
  EXPECT_EQ(effective.checkpoints, 0);
  EXPECT_TRUE(effective.sparse);
  EXPECT_EQ(effective.scale, 0.125);
  EXPECT_EQ(effective.softcap, 0.0);
  EXPECT_EQ(effective.score_type, ScoreType::bf16);
  EXPECT_EQ(effective.schedule, Schedule::layer_major);
  EXPECT_EQ(effective.threads, 1);
  EXPECT_TRUE(effective.warnings.empty());
}

TEST(Config, OptionsInRangeAreKept) {
  Options options;
  options.scale = 0.5;
  options.softcap = 30.0;
  options.score_type = ScoreType::f32;
  options.schedule = Schedule::chunk_major;
  const EffectiveOptions effective = resolve(small_shape(), options);
  EXPECT_EQ(effective.scale, 0.5);
  EXPECT_EQ(effective.softcap, 30.0);
  EXPECT_EQ(effective.score_type, ScoreType::f32);
  EXPECT_EQ(effective.schedule, Schedule::chunk_major);
}

struct MemoryCase {
  std::int64_t chunk, local, heavy, effective_local, effective_heavy;
  bool clamped;
};

TEST(Config, CFG_3_ClampsLocalFirstAndNeverRejects) {
  const MemoryCase cases[] = {{8, 3, 4, 3, 4, false},  {8, 4, 4, 4, 3, true},   {8, 7, 0, 7, 0, false},
                              {8, 8, 0, 7, 0, true},   {8, 0, 8, 0, 7, true},   {8, 0, 7, 0, 7, false},
                              {8, 100, 5, 7, 0, true}, {8, 5, 100, 5, 2, true}, {1, 5, 5, 0, 0, true},
                              {1, 0, 0, 0, 0, false},  {2, 1, 1, 1, 0, true},   {8, 7, 1, 7, 0, true}};
  for (const MemoryCase& c : cases) {
    SCOPED_TRACE(std::to_string(c.chunk) + "/" + std::to_string(c.local) + "/" + std::to_string(c.heavy));
    Options options;
    options.batch = 8;
    options.chunk = c.chunk;
    options.local = c.local;
    options.heavy = c.heavy;
    const EffectiveOptions effective = resolve(small_shape(), options);
    EXPECT_EQ(effective.local, c.effective_local);
    EXPECT_EQ(effective.heavy, c.effective_heavy);
    EXPECT_EQ(effective.sparse, c.effective_local + c.effective_heavy > 0);
    EXPECT_EQ(effective.warnings.size(), c.clamped ? 1U : 0U);
    if (c.clamped) {
      for (const std::int64_t number : {c.chunk, c.local, c.heavy, c.effective_local, c.effective_heavy}) {
        EXPECT_NE(effective.warnings.at(0).find("= " + std::to_string(number)), std::string::npos)
            << effective.warnings[0];
      }
    }

    options.clamp = false;
    const EffectiveOptions unclamped = resolve(small_shape(), options);
    EXPECT_EQ(unclamped.local, c.local);
    EXPECT_EQ(unclamped.heavy, c.heavy);
    EXPECT_EQ(unclamped.sparse, c.local + c.heavy > 0);
    EXPECT_TRUE(unclamped.warnings.empty());
  }
}

Options block_options() {
  Options options;
  options.batch = 64;
  options.chunk = 64;
  options.local = 8;
  options.heavy = 24;
  options.select = Select::blocks;
  return options;
}

TEST(Config, SEL_1_DefaultsAndEffectiveSizes) {
  const EffectiveOptions blocks = resolve(small_shape(), block_options());
  EXPECT_EQ(blocks.select, Select::blocks);
  EXPECT_EQ(blocks.key_block, 8);
  EXPECT_EQ(blocks.query_block, 32);
  EXPECT_EQ(blocks.pool, 4);
  EXPECT_EQ(blocks.refine, 2);
  EXPECT_TRUE(blocks.warnings.empty());

  Options options = block_options();
  options.select = Select::h2o;
  options.key_block = 0;  // not read
  options.query_block = -1;
  options.pool = 7;
  options.refine = 99;
  const EffectiveOptions h2o = resolve(small_shape(), options);
  EXPECT_EQ(h2o.select, Select::h2o);
  EXPECT_EQ(h2o.key_block, 0);
  EXPECT_EQ(h2o.query_block, 0);
  EXPECT_EQ(h2o.pool, 0);
  EXPECT_EQ(h2o.refine, 0);
}

TEST(Config, SEL_1_SizesHaveLimits) {
  struct Field {
    const char* name;
    std::int64_t Options::*member;
    std::int64_t most;
  };
  const Field fields[] = {{"key_block", &Options::key_block, 256},
                          {"query_block", &Options::query_block, 512},
                          {"pool", &Options::pool, 512},
                          {"refine", &Options::refine, 16}};
  for (const Field& field : fields) {
    SCOPED_TRACE(field.name);
    Options options = block_options();
    options.batch = 512;
    options.chunk = 512;
    options.heavy = 0;  // a multiple of every key block
    options.query_block = 512;
    options.*field.member = 1;
    if (field.member == &Options::query_block) options.pool = 1;
    EXPECT_NO_THROW(validate(small_shape(), options));
    options.*field.member = field.most;
    EXPECT_NO_THROW(validate(small_shape(), options));
    for (const std::int64_t value : {std::int64_t{0}, std::int64_t{-1}, kMin, field.most + 1, kMax}) {
      options.*field.member = value;
      expect_rejected(options, {std::string(field.name) + " = " + std::to_string(value),
                                "1 to " + std::to_string(field.most)});
    }
  }
  // K <= S
  Options options = block_options();
  options.chunk = 4;
  options.query_block = 4;
  expect_rejected(options, {"key_block = 8", "1 to 4"});
}

TEST(Config, SEL_1_PoolsAndBlocksAreWhole) {
  Options options = block_options();
  for (const std::int64_t pool : {3, 5, 24, 31}) {
    options.pool = pool;
    expect_rejected(options, {"pool = " + std::to_string(pool), "divisor of query_block = 32"});
  }
  for (const std::int64_t pool : {1, 2, 16, 32}) {
    options.pool = pool;
    EXPECT_NO_THROW(validate(small_shape(), options));
  }
  options = block_options();
  for (const std::int64_t heavy : {1, 7, 23, 25}) {
    options.heavy = heavy;
    expect_rejected(options, {"heavy = " + std::to_string(heavy), "multiple of key_block = 8"});
  }
  options.heavy = 36;
  options.key_block = 12;
  EXPECT_NO_THROW(validate(small_shape(), options));
}

TEST(Config, SEL_1_UnknownRule) {
  Options options;
  options.select = static_cast<Select>(3);
  expect_rejected(options, {"select = 3", "h2o", "blocks", "sketches"});
}

TEST(Config, SEL_1_ClampedHeavyIsAMultipleOfTheKeyBlock) {
  struct Clamped {
    std::int64_t local, heavy, key_block, effective_local, effective_heavy;
  };
  const Clamped cases[] = {{8, 56, 8, 8, 48}, {8, 48, 8, 8, 48},  {15, 64, 8, 15, 48}, {16, 64, 8, 16, 40},
                           {60, 8, 8, 60, 0}, {100, 8, 8, 63, 0}, {0, 64, 8, 0, 56},   {0, 63, 7, 0, 63},
                           {1, 63, 7, 1, 56}, {0, 64, 64, 0, 0},  {3, 70, 1, 3, 60}};
  for (const Clamped& c : cases) {
    SCOPED_TRACE(std::to_string(c.local) + "/" + std::to_string(c.heavy));
    Options options = block_options();
    options.local = c.local;
    options.heavy = c.heavy;
    options.key_block = c.key_block;
    const EffectiveOptions effective = resolve(small_shape(), options);
    EXPECT_EQ(effective.local, c.effective_local);
    EXPECT_EQ(effective.heavy, c.effective_heavy);
    EXPECT_EQ(effective.sparse, c.effective_local + c.effective_heavy > 0);
    const bool changed = c.local != c.effective_local || c.heavy != c.effective_heavy;
    ASSERT_EQ(effective.warnings.size(), changed ? 1U : 0U);
    if (changed) {
      EXPECT_NE(effective.warnings[0].find("heavy = " + std::to_string(c.effective_heavy)), std::string::npos)
          << effective.warnings[0];
    }
    options.clamp = false;
    EXPECT_EQ(resolve(small_shape(), options).heavy, c.heavy);
  }
}

TEST(Config, CFG_5_PinnedTokensAreHeavyOnes) {
  Options options;
  options.heavy = 24;
  for (const std::int64_t pinned : {0, 1, 23, 24}) {
    options.pinned = pinned;
    EXPECT_EQ(resolve(small_shape(), options).pinned, pinned);
  }
  for (const std::int64_t pinned : {std::int64_t{-1}, kMin, std::int64_t{25}, kPositions, kMax}) {
    options.pinned = pinned;
    expect_rejected(options, {"pinned = " + std::to_string(pinned), "0 to 24"});
    options.dense = true;  // looked at all the same
    expect_rejected(options, {"pinned = " + std::to_string(pinned), "0 to 24"});
    options.dense = false;
  }
  options.heavy = 0;
  options.pinned = 1;
  expect_rejected(options, {"pinned = 1", "0 to 0"});
  options.heavy = kPositions;
  options.pinned = kPositions;
  EXPECT_EQ(resolve(small_shape(), options).pinned, options.chunk - 1 - options.local);
}

TEST(Config, CFG_5_PinnedBlocksAreWhole) {
  Options options = block_options();
  for (const std::int64_t pinned : {1, 7, 9, 23}) {
    options.pinned = pinned;
    expect_rejected(options, {"pinned = " + std::to_string(pinned), "multiple of key_block = 8"});
  }
  for (const std::int64_t pinned : {0, 8, 16, 24}) {
    options.pinned = pinned;
    EXPECT_EQ(resolve(small_shape(), options).pinned, pinned);
  }
  options.pinned = 32;
  expect_rejected(options, {"pinned = 32", "0 to 24"});
  options.select = Select::h2o;  // the key block is not read
  options.pinned = 7;
  EXPECT_EQ(resolve(small_shape(), options).pinned, 7);
}

TEST(Config, CFG_5_AtMostTheEffectiveHeavyBudget) {
  struct Clamped {
    Select select;
    std::int64_t local, heavy, pinned, effective_pinned;
  };
  // Chunks of 64: H' = 63 - L', with rule `blocks` whole blocks of 8.
  const Clamped cases[] = {
      {Select::h2o, 8, 100, 54, 54},   {Select::h2o, 8, 100, 55, 55},   {Select::h2o, 8, 100, 56, 55},
      {Select::h2o, 8, 100, 100, 55},  {Select::h2o, 63, 9, 5, 0},      {Select::blocks, 8, 64, 40, 40},
      {Select::blocks, 8, 64, 48, 48}, {Select::blocks, 8, 64, 56, 48}, {Select::blocks, 60, 8, 8, 0}};
  for (const Clamped& c : cases) {
    SCOPED_TRACE(testing::Message() << c.local << "/" << c.heavy << "/" << c.pinned);
    Options options = block_options();
    options.select = c.select;
    options.local = c.local;
    options.heavy = c.heavy;
    options.pinned = c.pinned;
    EXPECT_EQ(resolve(small_shape(), options).pinned, c.effective_pinned);
    options.clamp = false;
    EXPECT_EQ(resolve(small_shape(), options).pinned, c.pinned);
    options.dense = true;  // CFG-2
    EXPECT_EQ(resolve(small_shape(), options).pinned, 0);
  }
}

TEST(Config, CFG_5_DenseBelowHasLimits) {
  Options options;
  for (const std::int64_t below : {std::int64_t{0}, std::int64_t{1}, std::int64_t{5000}, kPositions}) {
    options.dense_below = below;
    EXPECT_EQ(resolve(small_shape(), options).dense_below, below);
  }
  for (const std::int64_t below : {std::int64_t{-1}, kMin, kPositions + 1, kMax}) {
    options.dense_below = below;
    expect_rejected(options, {"dense_below = " + std::to_string(below), "0 to 2147483647"});
  }
}

TEST(Config, STATE_10_CheckpointsOfScoredSessions) {
  Options options;
  for (const std::int64_t checkpoints : {0, 1, 65536}) {
    options.checkpoints = checkpoints;
    EXPECT_EQ(resolve(small_shape(), options).checkpoints, checkpoints);
    Options dense = options;
    dense.dense = true;
    EXPECT_EQ(resolve(small_shape(), dense).checkpoints, 0);
    Options one_token = options;
    one_token.chunk = 1;  // CFG-3 leaves no memory
    EXPECT_EQ(resolve(small_shape(), one_token).checkpoints, 0);
    Options blocks = options;
    blocks.select = Select::blocks;
    EXPECT_EQ(resolve(small_shape(), blocks).checkpoints, 0);
  }
  for (const std::int64_t checkpoints : {std::int64_t{-1}, kMin, std::int64_t{65537}, kMax}) {
    options.checkpoints = checkpoints;
    expect_rejected(options, {"checkpoints = " + std::to_string(checkpoints), "0 to 65536"});
    options.select = Select::blocks;  // whether it is used or not
    expect_rejected(options, {"checkpoints = " + std::to_string(checkpoints), "0 to 65536"});
    options.select = Select::h2o;
  }
}

TEST(Config, CFG_5_DenseLayersAscendAndAreLayersOfTheSession) {
  Shape shape = small_shape();
  shape.n_layer = 300;
  Options options;
  std::vector<std::int64_t> all;
  for (std::int64_t layer = 0; layer < 300; ++layer) all.push_back(layer);
  for (const std::vector<std::int64_t>& layers :
       {std::vector<std::int64_t>{}, {0}, {299}, {0, 1, 299}, {7, 200}, all}) {
    options.dense_layers = layers;
    const EffectiveOptions effective = resolve(shape, options);
    EXPECT_EQ(effective.dense_layers, layers);
    for (std::int64_t layer = 0; layer < 300; ++layer) {
      EXPECT_EQ(effective.dense_layer(layer), std::count(layers.begin(), layers.end(), layer) > 0);
    }
  }
  struct Refused {
    std::vector<std::int64_t> layers;
    std::string entry, allowed;
  };
  const Refused refused[] = {{{-1}, "dense_layers[0] = -1", "0 to 299"},
                             {{300}, "dense_layers[0] = 300", "0 to 299"},
                             {{0, kMin}, "dense_layers[1] = " + std::to_string(kMin), "0 to 299"},
                             {{0, 5, kMax}, "dense_layers[2] = " + std::to_string(kMax), "0 to 299"},
                             {{3, 3}, "dense_layers[1] = 3", "above the entry before, 3"},
                             {{0, 9, 4}, "dense_layers[2] = 4", "above the entry before, 9"},
                             {{0, 1, 2, 2}, "dense_layers[3] = 2", "above the entry before, 2"}};
  for (const Refused& one : refused) {
    options.dense_layers = one.layers;
    expect_error(ErrorCode::invalid_argument, {one.entry, one.allowed},
                 [&] { static_cast<void>(resolve(shape, options)); });
  }
}

TEST(Config, CFG_2_DenseAsksForNoMemory) {
  Options options;
  options.dense = true;
  options.local = 5000;
  EffectiveOptions effective = resolve(small_shape(), options);
  EXPECT_FALSE(effective.sparse);
  EXPECT_EQ(effective.local, 0);
  EXPECT_EQ(effective.heavy, 0);
  EXPECT_EQ(effective.memory(), 0);
  EXPECT_TRUE(effective.warnings.empty());

  options.dense = false;
  options.local = 0;
  options.heavy = 0;
  effective = resolve(small_shape(), options);
  EXPECT_FALSE(effective.sparse);
  EXPECT_TRUE(effective.warnings.empty());
}

TEST(Config, CFG_4_BatchIsAtLeastAChunk) {
  Options options;
  options.local = 1;
  options.heavy = 1;
  options.chunk = 8;
  options.batch = 7;
  EffectiveOptions effective = resolve(small_shape(), options);
  EXPECT_EQ(effective.batch, 8);
  EXPECT_EQ(effective.chunk, 8);
  ASSERT_EQ(effective.warnings.size(), 1U);
  EXPECT_NE(effective.warnings[0].find("batch = 7"), std::string::npos);
  EXPECT_NE(effective.warnings[0].find("chunk = 8"), std::string::npos);

  for (const std::int64_t batch : {8, 16, 80}) {
    options.batch = batch;
    effective = resolve(small_shape(), options);
    EXPECT_EQ(effective.batch, batch);
    EXPECT_TRUE(effective.warnings.empty());
  }
  options.batch = 20;
  effective = resolve(small_shape(), options);
  EXPECT_EQ(effective.batch, 20);
  ASSERT_EQ(effective.warnings.size(), 1U);
  EXPECT_NE(effective.warnings[0].find("batch = 20 is not a multiple of chunk = 8"), std::string::npos);
}

}  // namespace
}  // namespace headwater::reference
