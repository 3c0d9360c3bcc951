#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "reference/engine.hpp"
#include "reference/numbers.hpp"
#include "tests/reference/definition.hpp"
#include "tests/reference/support.hpp"

/// Whole sessions of the engine `reference` against the definition.
/// Clauses: FUSE-2, SCHED-1, SCHED-2, SCHED-3, STATE-3, STATE-4, STATE-6, PLAN-2, MEM-1, MEM-3, MEM-5, MEM-6,
/// SCORE-2, SCORE-3, SCORE-5, DEC-1, CFG-2, CFG-3, LOGIT-1, LOGIT-2, LOGIT-3, LOGIT-4, SEL-1, SEL-2, SEL-4, SEL-5,
/// SEL-6, SEL-7, SEL-8, SEL-9, CFG-5, MEM-7, STATE-7,
/// LSE-1.
namespace headwater::reference {
namespace {

using test::Defined;
using test::Inputs;
using test::Settings;

/// A tensor in memory, token-major [n][heads][width] or head-major, with unused elements around each row.
struct Tensor {
  std::int64_t n, heads, width;
  DType type;
  std::int64_t row_stride, head_stride;
  std::vector<unsigned char> bytes;

  Tensor(std::int64_t rows, std::int64_t head_count, std::int64_t row_width, DType element, bool head_major)
      : n(rows), heads(head_count), width(row_width), type(element) {
    const std::int64_t gap = 3;
    row_stride = head_major ? width + gap : heads * (width + gap);
    head_stride = head_major ? n * (width + gap) : width + gap;
    bytes.assign(1 + static_cast<std::size_t>(n * heads * (width + gap)) * dtype_size(type), 0xEE);
  }
  [[nodiscard]] Rows rows(std::int64_t first) const {
    return {bytes.data() + 1 + static_cast<std::size_t>(first * row_stride) * dtype_size(type), type,
            row_stride, head_stride};
  }
  [[nodiscard]] MutableRows rows(std::int64_t first) {
    return {bytes.data() + 1 + static_cast<std::size_t>(first * row_stride) * dtype_size(type), type,
            row_stride, head_stride};
  }
  /// Random values of the tensor's type.
  void fill(test::Numbers& numbers, double size) {
    for (std::int64_t t = 0; t < n; ++t) {
      for (std::int64_t h = 0; h < heads; ++h) {
        std::vector<double> row(static_cast<std::size_t>(width));
        for (double& value : row) value = numbers.next() * size;
        write_row(rows(0), t, h, row);
      }
    }
  }
  /// All values in token-major order.
  [[nodiscard]] std::vector<double> values() const {
    std::vector<double> result;
    for (std::int64_t t = 0; t < n; ++t) {
      for (std::int64_t h = 0; h < heads; ++h) {
        std::vector<double> row(static_cast<std::size_t>(width));
        read_row(rows(0), t, h, row);
        result.insert(result.end(), row.begin(), row.end());
      }
    }
    return result;
  }
  /// Bytes that belong to no row still have their first value.
  [[nodiscard]] bool gaps_untouched() const {
    std::vector<bool> inside(bytes.size(), false);
    for (std::int64_t t = 0; t < n; ++t) {
      for (std::int64_t h = 0; h < heads; ++h) {
        const auto begin = 1 + static_cast<std::size_t>(t * row_stride + h * head_stride) * dtype_size(type);
        for (std::size_t b = 0; b < static_cast<std::size_t>(width) * dtype_size(type); ++b)
          inside[begin + b] = true;
      }
    }
    for (std::size_t b = 0; b < bytes.size(); ++b) {
      if (!inside[b] && bytes[b] != 0xEE) return false;
    }
    return true;
  }
};

double rounded_to(DType type, double value) {
  if (type == DType::f16) return from_f16(round_to_f16(value));
  return type == DType::bf16 ? from_bf16(round_to_bf16(value)) : static_cast<double>(round_to_f32(value));
}

/// Unit round-off of a type.
double unit(DType type) { return type == DType::f32 ? 0x1p-24 : type == DType::f16 ? 0x1p-11 : 0x1p-8; }

struct Case {
  Shape shape;
  Options options;
  std::vector<Step> steps;
  DType q_type = DType::f32, k_type = DType::f32, v_type = DType::f32, out_type = DType::f32;
  bool head_major = false;
  double size = 1.5;
  std::uint64_t seed = 1;
};

struct Layer {
  Tensor q, k, v, out, lse;
  Defined defined;
  std::vector<test::DefinedChunk>
      plan;  ///< what the session says, whether the layer is dense or not (STATE-7)
  std::size_t next_chunk = 0;
  std::size_t next_planned = 0;
};

Layer make_layer(const Case& c, std::int64_t index, std::int64_t n, const EffectiveOptions& effective,
                 test::Numbers& numbers) {
  const Shape& s = c.shape;
  Layer layer{Tensor(n, s.n_head, s.d_head, c.q_type, c.head_major),
              Tensor(n, s.n_head_kv, s.d_head, c.k_type, c.head_major),
              Tensor(n, s.n_head_kv, s.d_value, c.v_type, !c.head_major),
              Tensor(n, s.n_head, s.d_value, c.out_type, c.head_major),
              Tensor(n, s.n_head, 1, DType::f32, c.head_major),
              {},
              {}};
  layer.q.fill(numbers, c.size);
  layer.k.fill(numbers, c.size);
  layer.v.fill(numbers, 2.0);
  Inputs inputs{n,         s.n_head,         s.n_head_kv,      s.d_head,
                s.d_value, layer.q.values(), layer.k.values(), layer.v.values()};
  for (double& value : inputs.k) value = rounded_to(s.kv_type, value);
  for (double& value : inputs.v) value = rounded_to(s.kv_type, value);
  Settings settings{effective.batch,
                    effective.chunk,
                    effective.local,
                    effective.heavy,
                    effective.scale,
                    effective.softcap,
                    c.options.sinks,
                    c.options.alibi,
                    c.options.score_type == ScoreType::bf16,
                    effective.select == Select::blocks,
                    effective.key_block,
                    effective.query_block,
                    effective.pool,
                    effective.refine,
                    std::min(c.options.pinned, effective.heavy),  // CFG-5
                    c.options.dense_below};
  layer.plan = test::define_chunks(settings, c.steps);
  const std::vector<std::int64_t>& dense = c.options.dense_layers;
  settings.dense_layer = std::count(dense.begin(), dense.end(), index) > 0;
  layer.defined = define(inputs, settings, c.steps);
  return layer;
}

/// FUSE-1, LSE-1: what the observer is told has been written for the caller, too.
void check_lse(const ChunkRecord& record, const Layer& layer, const Shape& shape) {
  for (std::int64_t h = 0; h < shape.n_head; ++h) {
    for (std::int64_t row = 0; row < record.row_stride; ++row) {
      const std::int64_t i = record.chunk.begin + row;
      const double lse = layer.defined.lse[static_cast<std::size_t>(i * shape.n_head + h)];
      EXPECT_NEAR(record.lse[h * record.row_stride + row], lse, 0x1p-24 * std::fabs(lse) + 1e-13);
      float written = 0.0F;
      copy_row(layer.lse.rows(0), i, h, std::span(&written, 1));
      EXPECT_EQ(written, record.lse[h * record.row_stride + row]);
    }
  }
}

/// Rule `blocks`: sets and votes of one chunk (SEL-6 .. SEL-9).
void check_sets(const ChunkRecord& record, const test::DefinedChunk& expected, const Shape& shape,
                const EffectiveOptions& options) {
  EXPECT_EQ(record.colsum_inter, nullptr);
  EXPECT_EQ(record.colsum_intra, nullptr);
  ASSERT_EQ(record.query_blocks * shape.n_head_kv, static_cast<std::int64_t>(expected.sets.size()));
  if (expected.mode != ChunkMode::sparse) {
    EXPECT_EQ(record.memory_count, 0);
    EXPECT_EQ(record.candidate_blocks, 0);
    EXPECT_EQ(record.voted_tokens, 0);
    EXPECT_EQ(record.block_votes, nullptr);
    EXPECT_EQ(record.token_votes, nullptr);
    return;
  }
  EXPECT_EQ(record.query_blocks, options.query_blocks(expected.end - expected.begin));
  EXPECT_EQ(record.memory_stride, std::min(options.memory(), shape.capacity));
  EXPECT_EQ(record.memory_count, options.memory_count(expected.begin));
  EXPECT_EQ(record.candidate_blocks, options.candidate_blocks(expected.begin));
  EXPECT_EQ(record.voted_tokens, options.voted_tokens(expected.begin));
  EXPECT_EQ(record.block_votes != nullptr, record.candidate_blocks > 0);
  EXPECT_EQ(record.token_votes != nullptr, record.voted_tokens > 0);
  for (std::size_t s = 0; s < expected.sets.size(); ++s) {
    const test::DefinedSet& set = expected.sets[s];
    const auto at = static_cast<std::int64_t>(s);
    ASSERT_EQ(record.memory_count, static_cast<std::int64_t>(set.positions.size()));
    ASSERT_EQ(record.candidate_blocks, static_cast<std::int64_t>(set.block_votes.size()));
    ASSERT_EQ(record.voted_tokens, static_cast<std::int64_t>(set.token_votes.size()));
    for (std::int64_t e = 0; e < record.memory_stride; ++e) {
      const bool valid = e < record.memory_count;
      EXPECT_EQ(record.memory[at * record.memory_stride + e],
                valid ? set.positions[static_cast<std::size_t>(e)] : -1);
    }
    // The exact estimates come in another order of operations: their difference may be a rounding away from 0.
    for (std::size_t b = 0; b < set.block_votes.size(); ++b) {
      const float vote = record.block_votes[at * record.candidate_blocks + static_cast<std::int64_t>(b)];
      if (std::isinf(set.block_votes[b])) {
        EXPECT_EQ(vote, set.block_votes[b]);  // SEL-12
      } else {
        EXPECT_NEAR(vote, set.block_votes[b], 0x1p-23 * std::fabs(set.block_votes[b]) + 1e-13);
      }
    }
    for (std::size_t r = 0; r < set.token_votes.size(); ++r) {
      EXPECT_NEAR(record.token_votes[at * record.voted_tokens + static_cast<std::int64_t>(r)],
                  set.token_votes[r], 0x1p-23 * set.token_votes[r]);
    }
  }
}

/// One record of the observer against the definition (MEM-4, INTRA-2, INTER-2, FUSE-1).
void check_record(const ChunkRecord& record, Layer& layer, const Shape& shape,
                  const EffectiveOptions& options) {
  ASSERT_LT(layer.next_chunk, layer.defined.chunks.size());
  const test::DefinedChunk& expected = layer.defined.chunks[layer.next_chunk++];
  ASSERT_EQ(record.chunk.begin, expected.begin);
  ASSERT_EQ(record.chunk.end, expected.end);
  ASSERT_EQ(record.chunk.mode, expected.mode);
  ASSERT_EQ(record.row_stride, expected.end - expected.begin);
  check_lse(record, layer, shape);
  if (options.select == Select::blocks) {
    check_sets(record, expected, shape, options);
    return;
  }
  const std::int64_t width = std::min(options.memory(), shape.capacity);
  EXPECT_EQ(record.memory_stride, width);
  EXPECT_EQ(record.query_blocks, 0);
  EXPECT_EQ(record.candidate_blocks, 0);
  EXPECT_EQ(record.voted_tokens, 0);
  EXPECT_EQ(record.block_votes, nullptr);
  EXPECT_EQ(record.token_votes, nullptr);
  const bool sparse = expected.mode == ChunkMode::sparse;
  if (width > 0) {
    EXPECT_EQ(record.colsum_inter != nullptr, sparse);
  }
  EXPECT_EQ(record.colsum_intra != nullptr, sparse);
  for (std::int64_t h = 0; h < shape.n_head; ++h) {
    const auto head = static_cast<std::size_t>(h);
    for (std::int64_t e = 0; e < width; ++e) {
      const auto entry = static_cast<std::size_t>(e);
      const bool valid = sparse && entry < expected.memory[head].size();
      EXPECT_EQ(record.memory[h * width + e], valid ? expected.memory[head][entry] : -1);
      if (sparse) {
        EXPECT_EQ(record.colsum_inter[h * width + e], valid ? expected.colsum_inter[head][entry] : 0.0F);
      }
    }
    EXPECT_EQ(record.memory_count, sparse ? static_cast<std::int64_t>(expected.memory[head].size()) : 0);
    for (std::int64_t row = 0; sparse && row < record.row_stride; ++row) {
      EXPECT_EQ(record.colsum_intra[h * record.row_stride + row],
                expected.colsum_intra[head][static_cast<std::size_t>(row)]);
    }
  }
}

void check_scores(const Session& session, std::int64_t index, const Layer& layer) {
  const Shape& shape = session.shape();
  const ScoreView view = session.scores(index);
  EXPECT_EQ(view.type, session.options().score_type);
  EXPECT_EQ(view.head_stride, shape.capacity);
  const std::int64_t n = layer.q.n;
  for (std::int64_t h = 0; h < shape.n_head; ++h) {
    for (std::int64_t p = 0; p < shape.capacity; ++p) {
      const std::int64_t entry = h * shape.capacity + p;
      const float expected = p < n ? layer.defined.scores[static_cast<std::size_t>(h * n + p)] : 0.0F;
      if (view.type == ScoreType::bf16) {
        const std::uint32_t bits = std::bit_cast<std::uint32_t>(expected) >> 16U;
        EXPECT_EQ(static_cast<const std::uint16_t*>(view.data)[entry], bits)
            << "head " << h << ", position " << p;
      } else {
        EXPECT_EQ(static_cast<const float*>(view.data)[entry], expected)
            << "head " << h << ", position " << p;
      }
    }
  }
}

/// MEM-4: the last set that was built, as the session shows it.
void check_memory(const Session& session, std::int64_t index, const Layer& layer) {
  const MemoryView view = session.memory(index);
  if (session.options().select == Select::blocks) {  // SEL-9
    EXPECT_EQ(view.width, 0);
    EXPECT_EQ(view.count, 0);
    EXPECT_EQ(view.data, nullptr);
    return;
  }
  const test::DefinedChunk* last = nullptr;
  for (const test::DefinedChunk& chunk : layer.defined.chunks) {
    if (chunk.mode == ChunkMode::sparse && chunk.begin > 0) last = &chunk;
  }
  EXPECT_EQ(view.width, std::min(session.options().memory(), session.shape().capacity));
  EXPECT_EQ(view.head_stride, view.width);
  ASSERT_EQ(view.count, last == nullptr ? 0 : static_cast<std::int64_t>(last->memory[0].size()));
  for (std::int64_t h = 0; h < session.shape().n_head; ++h) {
    for (std::int64_t e = 0; e < view.width; ++e) {
      const std::int32_t expected =
          e < view.count ? last->memory[static_cast<std::size_t>(h)][static_cast<std::size_t>(e)] : -1;
      EXPECT_EQ(view.data[h * view.head_stride + e], expected);
    }
  }
}

void check_stored_rows(const Session& session, std::int64_t index, const Layer& layer) {
  const Shape& shape = session.shape();
  const std::vector<double> k = layer.k.values();
  const std::vector<double> v = layer.v.values();
  std::vector<float> key(static_cast<std::size_t>(shape.d_head));
  std::vector<float> value(static_cast<std::size_t>(shape.d_value));
  for (std::int64_t p = 0; p < layer.k.n; ++p) {
    for (std::int64_t g = 0; g < shape.n_head_kv; ++g) {
      session.read_key(index, g, p, key);
      session.read_value(index, g, p, value);
      for (std::size_t c = 0; c < key.size(); ++c) {
        EXPECT_EQ(key[c], rounded_to(shape.kv_type,
                                     k[static_cast<std::size_t>(p * shape.n_head_kv + g) * key.size() + c]));
      }
      for (std::size_t c = 0; c < value.size(); ++c) {
        EXPECT_EQ(value[c],
                  rounded_to(shape.kv_type,
                             v[static_cast<std::size_t>(p * shape.n_head_kv + g) * value.size() + c]));
      }
    }
  }
}

void check_output(const Case& c, const Layer& layer) {
  const std::vector<double> out = layer.out.values();
  ASSERT_EQ(out.size(), layer.defined.out.size());
  for (std::size_t e = 0; e < out.size(); ++e) {
    const double expected = layer.defined.out[e];
    // One rounding to the output type, and the difference of two computations in double.
    EXPECT_NEAR(out[e], expected, unit(c.out_type) * std::fabs(expected) + 1e-13) << "element " << e;
  }
  EXPECT_TRUE(layer.out.gaps_untouched());
  EXPECT_TRUE(layer.lse.gaps_untouched());
}

/// No alignment: the rows of a Tensor begin on odd bytes.
LseOutput lse_output(const MutableRows& rows) {
  return {reinterpret_cast<float*>(rows.data), rows.row_stride, rows.head_stride};
}

void check(const Case& c) {
  std::int64_t n = 0;
  for (const Step& step : c.steps) n += step.n;
  const std::unique_ptr<Session> session = reference_engine().open(c.shape, c.options);
  test::Numbers numbers(c.seed);
  std::vector<Layer> layers;
  for (std::int64_t l = 0; l < c.shape.n_layer; ++l) {
    layers.push_back(make_layer(c, l, n, session->options(), numbers));
  }
  session->set_observer([&](const ChunkRecord& record) {
    check_record(record, layers.at(static_cast<std::size_t>(record.layer)), c.shape, session->options());
  });

  std::int64_t base = 0;
  for (const Step& step : c.steps) {
    session->begin(step);
    EXPECT_EQ(session->state(),
              step.kind == Step::Kind::prefill ? SessionState::prefilling : SessionState::decoding);
    EXPECT_EQ(session->tokens(), base);
    // Any order of layers.
    for (std::size_t l = layers.size(); l-- > 0;) {
      Layer& layer = layers[l];
      const Tensor& q = layer.q;
      const Tensor& k = layer.k;
      const Tensor& v = layer.v;
      session->attend(static_cast<std::int64_t>(l), q.rows(base), k.rows(base), v.rows(base),
                      layer.out.rows(base), lse_output(layer.lse.rows(base)));
      // Each layer has been shown all that it attended.
      EXPECT_EQ(layer.defined.chunks.at(layer.next_chunk - 1).end, base + step.n);
      for (const Chunk& chunk : session->plan()) {
        ASSERT_LT(layer.next_planned, layer.plan.size());
        const test::DefinedChunk& planned = layer.plan[layer.next_planned++];
        EXPECT_EQ(chunk.begin, planned.begin);
        EXPECT_EQ(chunk.end, planned.end);
        EXPECT_EQ(chunk.mode, planned.mode);
      }
      EXPECT_EQ(layer.plan.at(layer.next_planned - 1).end, base + step.n);
    }
    session->end();
    base += step.n;
    EXPECT_EQ(session->tokens(), base);
  }
  for (std::size_t l = 0; l < layers.size(); ++l) {
    SCOPED_TRACE("layer " + std::to_string(l));
    const Layer& layer = layers[l];
    EXPECT_EQ(layer.next_chunk, layer.defined.chunks.size());
    check_output(c, layer);
    check_scores(*session, static_cast<std::int64_t>(l), layer);
    check_memory(*session, static_cast<std::int64_t>(l), layer);
    check_stored_rows(*session, static_cast<std::int64_t>(l), layer);
  }
}

/// A session of chunks of 4 tokens with a memory of 1 + 2.
Case small(std::vector<Step> steps, Schedule schedule = Schedule::layer_major) {
  Case c;
  c.shape.n_layer = 1;
  c.shape.n_head = 2;
  c.shape.n_head_kv = 1;
  c.shape.d_head = 3;
  c.shape.d_value = 2;
  c.shape.capacity = 40;
  c.options.batch = 16;
  c.options.chunk = 4;
  c.options.local = 1;
  c.options.heavy = 2;
  c.options.schedule = schedule;
  c.steps = std::move(steps);
  return c;
}

class Pipeline : public testing::TestWithParam<Schedule> {};

TEST_P(Pipeline, FUSE_2_PromptsOfEveryLengthAroundTheChunk) {
  for (const std::int64_t n : {1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 15, 16, 17, 33}) {
    SCOPED_TRACE(n);
    check(small({Step::prefill(n)}, GetParam()));
  }
}

TEST_P(Pipeline, LOGIT_4_Sinks) {
  Case c =
      small({Step::prefill(14), Step::decode(), Step::prefill(3, 9), Step::prefill(6, 9), Step::decode(2)},
            GetParam());
  c.options.sinks = {0.5F, -1.0F};
  check(c);
  c.options.sinks = {-test::kInfF, 2.0F};
  check(c);
}

TEST_P(Pipeline, LOGIT_2_LOGIT_3_CapAndBias) {
  Case c = small({Step::prefill(14), Step::decode(2), Step::prefill(9)}, GetParam());
  c.options.softcap = 1.5;
  c.options.alibi = {0.25F, 0.0625F};
  c.options.scale = 1.25;
  check(c);
}

TEST_P(Pipeline, LOGIT_1_GroupedHeadsAndWideRows) {
  Case c = small({Step::prefill(13), Step::decode(1), Step::prefill(2)}, GetParam());
  c.shape.n_head = 6;
  c.shape.n_head_kv = 3;
  c.shape.d_head = 5;
  c.shape.d_value = 7;
  check(c);
  c.head_major = true;
  check(c);
}

TEST_P(Pipeline, STATE_3_TurnsOfEveryMode) {
  check(small(
      {Step::prefill(10), Step::decode(), Step::decode(), Step::prefill(4), Step::decode(), Step::prefill(5)},
      GetParam()));
  check(small({Step::prefill(2), Step::decode(3), Step::prefill(11), Step::decode(1), Step::prefill(3),
               Step::decode(1), Step::prefill(6)},
              GetParam()));
  // Decoding first, so the prompt is a later turn.
  check(small({Step::decode(3), Step::prefill(4), Step::decode(1), Step::prefill(9)}, GetParam()));
  // Said lengths: a sparse turn in short calls, a dense turn that grows long.
  check(small({Step::prefill(3), Step::decode(1), Step::prefill(2, 8), Step::prefill(6), Step::decode(1),
               Step::prefill(2, 4), Step::prefill(9)},
              GetParam()));
}

TEST_P(Pipeline, PLAN_2_CallsAndBatches) {
  check(small({Step::prefill(4, 13), Step::prefill(8), Step::prefill(1)}, GetParam()));
  check(small({Step::prefill(3, 13), Step::prefill(7), Step::prefill(3, 13)}, GetParam()));
  Case c = small({Step::prefill(23), Step::prefill(11)}, GetParam());
  c.options.batch = 10;
  check(c);
  c.options.batch = 2;  // read as 4
  check(c);
}

TEST_P(Pipeline, MEM_1_LocalAndHeavyAlone) {
  for (const std::int64_t memory : {1, 2, 3}) {
    Case c = small({Step::prefill(15), Step::decode(2), Step::prefill(7)}, GetParam());
    c.options.local = memory;
    c.options.heavy = 0;
    check(c);
    c.options.local = 0;
    c.options.heavy = memory;
    check(c);
  }
}

TEST_P(Pipeline, CFG_3_ClampedAndUnclampedMemories) {
  Case c = small({Step::prefill(15), Step::decode(2), Step::prefill(7)}, GetParam());
  c.options.local = 3;
  c.options.heavy = 9;
  check(c);
  c.options.clamp = false;
  check(c);
  c.options.local = 100;  // wider than the capacity
  check(c);
  c.options.local = 5;  // reaches back over more than a chunk
  c.options.heavy = 1;
  check(c);
}

TEST_P(Pipeline, CFG_2_DenseSessions) {
  Case c = small({Step::prefill(11), Step::prefill(2), Step::decode(2), Step::prefill(7)}, GetParam());
  c.options.dense = true;
  check(c);
  c.options.sinks = {0.5F, -1.0F};
  check(c);
}

TEST_P(Pipeline, STATE_6_Types) {
  const DType types[] = {DType::f32, DType::f16, DType::bf16};
  for (std::size_t i = 0; i < 3; ++i) {
    Case c = small({Step::prefill(11), Step::decode(1), Step::prefill(5)}, GetParam());
    c.q_type = types[i];
    c.k_type = types[(i + 1) % 3];
    c.v_type = types[(i + 2) % 3];
    c.out_type = types[i];
    for (const DType kv_type : types) {
      c.shape.kv_type = kv_type;
      check(c);
    }
  }
}

TEST_P(Pipeline, SCORE_5_F32Scores) {
  Case c = small({Step::prefill(25), Step::decode(1), Step::prefill(9)}, GetParam());
  c.options.score_type = ScoreType::f32;
  check(c);
}

TEST_P(Pipeline, SCHED_3_LayersAreApart) {
  Case c = small({Step::prefill(11), Step::decode(2), Step::prefill(3), Step::prefill(9), Step::decode(1)},
                 GetParam());
  c.shape.n_layer = 3;
  check(c);
}

TEST_P(Pipeline, MEM_3_ManyTies) {
  // Equal keys and queries of zero: every score of a chunk column is a tie somewhere.
  Case c = small({Step::prefill(30)}, GetParam());
  c.size = 0.0;
  c.options.heavy = 2;
  check(c);
}

/// Half of them: two layers, some of them dense, and a length below which turns are dense.
void draw_turn_options(Case& c, test::Numbers& numbers) {
  if (numbers.below(2) == 0) return;
  c.shape.n_layer = 2;
  for (const std::int64_t layer : {0, 1}) {
    if (numbers.below(3) == 0) c.options.dense_layers.push_back(layer);
  }
  c.options.dense_below = numbers.below(12);
}

TEST_P(Pipeline, SCORE_3_RandomSettings) {
  test::Numbers numbers(99);
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    Case c = small({}, GetParam());
    c.seed = seed;
    c.shape.n_head_kv = 1 + numbers.below(2);
    c.shape.n_head = c.shape.n_head_kv * (1 + numbers.below(2));
    c.shape.d_head = 1 + numbers.below(4);
    c.shape.d_value = 1 + numbers.below(4);
    c.options.chunk = 1 + numbers.below(6);
    c.options.batch = 1 + numbers.below(15);
    c.options.local = numbers.below(5);
    c.options.heavy = numbers.below(5);
    c.options.clamp = numbers.below(2) == 0;
    c.head_major = numbers.below(2) == 0;
    draw_turn_options(c, numbers);
    if (numbers.below(2) == 0) c.options.pinned = numbers.below(c.options.heavy + 1);
    std::int64_t left = c.shape.capacity;
    while (left > 0) {
      const std::int64_t n = 1 + numbers.below(std::min<std::int64_t>(left, 14));
      c.steps.push_back(numbers.below(3) == 0 ? Step::decode(n) : Step::prefill(n));
      left -= n;
    }
    check(c);
  }
}

TEST_P(Pipeline, MEM_7_PinnedTokens) {
  const std::vector<Step> turns{Step::prefill(21), Step::decode(2), Step::prefill(3), Step::decode(1),
                                Step::prefill(13)};
  for (std::int64_t heavy = 0; heavy <= 6; ++heavy) {
    for (std::int64_t pinned = 0; pinned <= heavy; ++pinned) {
      for (const std::int64_t local : {0, 1, 3}) {
        SCOPED_TRACE(testing::Message() << pinned << " of " << heavy << ", " << local);
        Case c = small(turns, GetParam());
        c.options.local = local;
        c.options.heavy = heavy;
        c.options.pinned = pinned;
        check(c);  // CFG-5: clamped to 3 - L
        c.options.clamp = false;
        check(c);
      }
    }
  }
}

TEST_P(Pipeline, MEM_7_PinnedTokensOfLongPrompts) {
  Case c = small({Step::prefill(300), Step::decode(5), Step::prefill(95)}, GetParam());
  c.shape.capacity = 400;
  c.options.batch = 128;
  c.options.chunk = 32;
  c.options.local = 5;
  c.options.heavy = 20;
  for (const std::int64_t pinned : {1, 19, 20}) {
    SCOPED_TRACE(pinned);
    c.options.pinned = pinned;
    check(c);
  }
}

TEST_P(Pipeline, MEM_7_AmongManyTies) {
  Case c = small({Step::prefill(30)}, GetParam());
  c.size = 0.0;
  c.options.chunk = 8;
  c.options.heavy = 4;
  for (const std::int64_t pinned : {1, 3, 4}) {
    c.options.pinned = pinned;
    check(c);
  }
}

TEST_P(Pipeline, CFG_2_DenseSessionsWithPinnedTokens) {
  Case c = small({Step::prefill(11), Step::decode(2), Step::prefill(7)}, GetParam());
  c.options.pinned = 2;
  c.options.dense = true;
  check(c);
}

TEST_P(Pipeline, STATE_3_DenseBelowALength) {
  // Turns of 9, 11, 2 of 10, and 10 tokens.
  for (const std::int64_t below : {0, 1, 9, 10, 11, 12, 100}) {
    SCOPED_TRACE(below);
    Case c = small({Step::prefill(9), Step::decode(1), Step::prefill(11), Step::decode(2),
                    Step::prefill(2, 10), Step::prefill(5), Step::decode(1), Step::prefill(9)},
                   GetParam());
    c.options.dense_below = below;
    check(c);
  }
}

TEST_P(Pipeline, STATE_7_DenseLayers) {
  const std::vector<std::vector<std::int64_t>> some{{0}, {1}, {2}, {0, 2}, {1, 2}, {0, 1, 2}};
  for (const std::vector<std::int64_t>& dense : some) {
    Case c = small({Step::prefill(4, 17), Step::prefill(13), Step::decode(2), Step::prefill(3),
                    Step::decode(1), Step::prefill(9)},
                   GetParam());
    c.shape.n_layer = 3;
    c.options.batch = 8;
    c.options.sinks = {0.5F, -1.0F};
    c.options.dense_layers = dense;
    check(c);
    c.options.pinned = 2;
    c.options.dense_below = 10;
    check(c);
  }
}

/// Rule `blocks`: chunks of 8 tokens, sets of 2 + 4 for 4 rows, key blocks of 2, pools of 2, two stages.
Case blocks(std::vector<Step> steps, Schedule schedule) {
  Case c = small(std::move(steps), schedule);
  c.options.select = Select::blocks;
  c.options.chunk = 8;
  c.options.local = 2;
  c.options.heavy = 4;
  c.options.key_block = 2;
  c.options.query_block = 4;
  c.options.pool = 2;
  c.options.refine = 2;
  return c;
}

TEST_P(Pipeline, SEL_4_PromptsOfEveryLength) {
  for (std::int64_t n = 1; n <= 33; ++n) {
    SCOPED_TRACE(n);
    check(blocks({Step::prefill(n)}, GetParam()));
  }
}

TEST_P(Pipeline, SEL_7_OneStageAndTwo) {
  for (const std::int64_t refine : {1, 2, 3, 5, 16}) {
    SCOPED_TRACE(refine);
    Case c = blocks({Step::prefill(39)}, GetParam());
    c.options.refine = refine;
    check(c);
  }
}

TEST_P(Pipeline, SEL_2_LocalAndHeavyOfEverySize) {
  for (const std::int64_t key_block : {1, 2, 3, 4, 8}) {
    for (std::int64_t local = 0; local <= 9; ++local) {
      for (const std::int64_t kept : {0, 1, 2}) {
        SCOPED_TRACE(testing::Message() << key_block << ", " << local << ", " << kept);
        Case c = blocks({Step::prefill(18), Step::decode(3), Step::prefill(17), Step::decode(2)}, GetParam());
        c.options.key_block = key_block;
        c.options.local = local;
        c.options.heavy = kept * key_block;
        c.options.clamp = false;
        check(c);
      }
    }
  }
}

TEST_P(Pipeline, MEM_7_PinnedBlocks) {
  for (const std::int64_t refine : {1, 2, 3}) {
    for (std::int64_t kept = 0; kept <= 3; ++kept) {
      for (std::int64_t pinned = 0; pinned <= kept; ++pinned) {
        for (const std::int64_t local : {0, 2, 5}) {
          SCOPED_TRACE(testing::Message() << pinned << " of " << kept << ", " << refine << ", " << local);
          Case c = blocks({Step::prefill(21), Step::decode(3), Step::prefill(16)}, GetParam());
          c.options.local = local;
          c.options.heavy = 2 * kept;
          c.options.pinned = 2 * pinned;
          c.options.refine = refine;
          check(c);  // CFG-5: with L = 5 clamped to one block
          c.options.clamp = false;
          check(c);
        }
      }
    }
  }
}

TEST_P(Pipeline, STATE_7_DenseLayersAndShortTurnsOfRuleBlocks) {
  Case c = blocks({Step::prefill(9), Step::decode(1), Step::prefill(19), Step::decode(1), Step::prefill(10)},
                  GetParam());
  c.shape.n_layer = 3;
  c.options.dense_layers = {0, 2};
  check(c);
  c.options.dense_below = 10;
  c.options.pinned = 4;
  check(c);
}

TEST_P(Pipeline, SEL_1_Clamped) {
  for (const std::int64_t local : {0, 2, 3, 6, 7, 20}) {
    Case c = blocks({Step::prefill(26), Step::decode(1), Step::prefill(11)}, GetParam());
    c.options.local = local;
    c.options.heavy = 12;
    c.options.key_block = 3;
    check(c);
  }
}

TEST_P(Pipeline, SEL_5_CapBiasAndSinks) {
  Case c = blocks({Step::prefill(23), Step::decode(2), Step::prefill(13)}, GetParam());
  c.options.softcap = 1.5;
  c.options.alibi = {0.25F, -0.0625F};
  c.options.scale = 1.25;
  c.options.sinks = {0.5F, -1.0F};
  check(c);
  c.options.scale = -0.75;
  check(c);
}

TEST_P(Pipeline, SEL_6_GroupedHeadsAndWideRows) {
  Case c = blocks({Step::prefill(21), Step::decode(1), Step::prefill(9)}, GetParam());
  c.shape.n_head = 6;
  c.shape.n_head_kv = 2;
  c.shape.d_head = 5;
  c.shape.d_value = 7;
  check(c);
  c.head_major = true;
  check(c);
}

TEST_P(Pipeline, SEL_6_ManyTies) {
  Case c = blocks({Step::prefill(38)}, GetParam());
  c.size = 0.0;
  check(c);
  c.options.refine = 1;
  check(c);
}

TEST_P(Pipeline, SEL_12_ChunksOnEachSideOf2048Candidates) {
  // The last two chunks begin at 2048 and 2304: 2046 and 2302 candidates.
  Case c = blocks({Step::prefill(2310)}, GetParam());
  c.shape.d_head = 2;
  c.shape.d_value = 1;
  c.shape.capacity = 2310;
  c.options.chunk = 256;
  c.options.key_block = 1;
  c.options.query_block = 256;
  c.options.pool = 128;
  check(c);
}

TEST_P(Pipeline, SEL_9_TurnsOfEveryMode) {
  check(blocks(
      {Step::prefill(10), Step::decode(), Step::decode(), Step::prefill(4), Step::decode(), Step::prefill(9)},
      GetParam()));
  check(blocks({Step::decode(3), Step::prefill(8), Step::decode(1), Step::prefill(19)}, GetParam()));
  check(blocks({Step::prefill(3), Step::decode(1), Step::prefill(2, 12), Step::prefill(10), Step::decode(1),
                Step::prefill(2, 4), Step::prefill(9)},
               GetParam()));
  Case c = blocks({Step::prefill(11), Step::decode(2), Step::prefill(9)}, GetParam());
  c.options.dense = true;
  check(c);
}

TEST_P(Pipeline, SEL_9_LayersAndTypes) {
  for (const DType kv_type : {DType::f32, DType::f16, DType::bf16}) {
    Case c = blocks({Step::prefill(21), Step::decode(2), Step::prefill(9)}, GetParam());
    c.shape.n_layer = 2;
    c.shape.kv_type = kv_type;
    check(c);
  }
}

TEST_P(Pipeline, SEL_8_RandomSettings) {
  test::Numbers numbers(17);
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    Case c = blocks({}, GetParam());
    c.seed = seed;
    c.shape.n_head_kv = 1 + numbers.below(2);
    c.shape.n_head = c.shape.n_head_kv * (1 + numbers.below(3));
    c.shape.d_head = 1 + numbers.below(4);
    c.shape.d_value = 1 + numbers.below(4);
    c.options.chunk = 1 + numbers.below(12);
    c.options.batch = 1 + numbers.below(25);
    c.options.pool = 1 + numbers.below(std::min<std::int64_t>(4, c.options.chunk));
    c.options.query_block = c.options.pool * (1 + numbers.below(c.options.chunk / c.options.pool));
    c.options.key_block = 1 + numbers.below(std::min<std::int64_t>(5, c.options.chunk));
    c.options.local = numbers.below(9);
    c.options.heavy = c.options.key_block * numbers.below(4);
    c.options.refine = 1 + numbers.below(4);
    c.options.clamp = numbers.below(2) == 0;
    c.head_major = numbers.below(2) == 0;
    draw_turn_options(c, numbers);
    const std::int64_t heavy_blocks = c.options.heavy / c.options.key_block;
    if (numbers.below(2) == 0) c.options.pinned = c.options.key_block * numbers.below(heavy_blocks + 1);
    std::int64_t left = c.shape.capacity;
    while (left > 0) {
      const std::int64_t n = 1 + numbers.below(std::min<std::int64_t>(left, 24));
      c.steps.push_back(numbers.below(3) == 0 ? Step::decode(n) : Step::prefill(n));
      left -= n;
    }
    check(c);
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, Pipeline, testing::Values(Schedule::layer_major, Schedule::chunk_major),
                         [](const testing::TestParamInfo<Schedule>& chosen) {
                           return chosen.param == Schedule::layer_major ? "SCHED_1" : "SCHED_2";
                         });

}  // namespace
}  // namespace headwater::reference
