#include "conformance/reference_oracle.hpp"

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "reference/engine.hpp"
#include "tests/reference/support.hpp"

/// Clauses: FUSE-2, DEC-1 and SPEC 13.
namespace headwater::conformance {
namespace {

namespace test = reference::test;
using reference::LogitRule;
using reference::Matrix;
using test::expect_error;
using test::expect_near;

const double kU = 0x1p-24;

/// Four tokens with d = dv = 1, one key/value head, two query heads; every query is 1 in head 0 and -1 in
/// head 1.
struct Tiny {
  std::vector<float> q{1, -1, 1, -1, 1, -1, 1, -1};
  std::vector<float> k{0.0F, 1.0F, 0.5F, 2.0F};
  std::vector<float> v{3.0F, -5.0F, 7.0F, -11.0F};

  [[nodiscard]] LayerRows layer() const {
    LayerRows rows;
    rows.q = Rows::token_major(q.data(), DType::f32, 2, 1);
    rows.k = Rows::token_major(k.data(), DType::f32, 1, 1);
    rows.v = Rows::token_major(v.data(), DType::f32, 1, 1);
    rows.n_head = 2;
    return rows;
  }
};

TEST(Oracle, FUSE_2_ASparseChunkUnderAGivenMemory) {
  const Tiny tiny;
  const std::vector<std::int32_t> memory{1};
  LogitRule rule;
  rule.sink = 0.25;
  const OracleHead head = oracle_head(tiny.layer(), rule, Chunk{2, 4, ChunkMode::sparse}, 1, memory);
  const double e1 = std::exp(-1.0);
  const double e2 = std::exp(-0.5);
  const double e3 = std::exp(-2.0);
  const double z = std::exp(0.25);
  ASSERT_EQ(head.output.size(), 2U);
  expect_near(head.output[0].o, {(-5 * e1 + 7 * e2) / (e1 + e2 + z)});
  expect_near(head.output[1].o, {(-5 * e1 + 7 * e2 - 11 * e3) / (e1 + e2 + e3 + z)});
  expect_near(head.lse, {std::log(e1 + e2 + z), std::log(e1 + e2 + e3 + z)});
  expect_near(head.intra[1].o, {(7 * e2 - 11 * e3) / (e2 + e3 + z)});
  expect_near(head.inter[1].o, {-5});
  EXPECT_EQ(head.inter[0].m, -1.0);
  EXPECT_EQ(head.intra[0].m, 0.25);
  expect_near(head.colsum_intra, {e2 / (e2 + z) + e2 / (e2 + e3 + z), e3 / (e2 + e3 + z)});
  expect_near(head.colsum_inter, {2.0});
}

TEST(Oracle, DEC_1_DenseChunksSeeEverything) {
  const Tiny tiny;
  for (const ChunkMode mode : {ChunkMode::dense, ChunkMode::decode}) {
    const OracleHead head = oracle_head(tiny.layer(), LogitRule{}, Chunk{2, 4, mode}, 0, {});
    const double a = std::exp(1.0);
    const double b = std::exp(0.5);
    const double c = std::exp(2.0);
    expect_near(head.output[0].o, {(3 - 5 * a + 7 * b) / (1 + a + b)});
    expect_near(head.output[1].o, {(3 - 5 * a + 7 * b - 11 * c) / (1 + a + b + c)});
    expect_near(head.lse, {std::log(1 + a + b), std::log(1 + a + b + c)});
    EXPECT_TRUE(head.colsum_intra.empty());
    EXPECT_TRUE(head.colsum_inter.empty());
    EXPECT_EQ(head.inter[0].l, 0.0);
    const OracleBounds bounds = oracle_bounds(tiny.layer(), LogitRule{}, Chunk{2, 4, mode}, 0, {});
    expect_near(bounds.output_size.values,
                {(3 + 5 * a + 7 * b) / (1 + a + b), (3 + 5 * a + 7 * b + 11 * c) / (1 + a + b + c)});
    EXPECT_TRUE(bounds.colsum_intra_ds.empty());
    EXPECT_TRUE(bounds.colsum_inter_ds.empty());
    expect_near(bounds.output_ds, {5 * kU, 10 * kU}, 1e-20);
  }
}

TEST(Oracle, Errors) {
  const Tiny tiny;
  const auto call = [&](const char* part, Chunk chunk, std::int64_t head, std::vector<std::int32_t> memory) {
    expect_error(ErrorCode::invalid_argument, {part},
                 [&] { static_cast<void>(oracle_head(tiny.layer(), LogitRule{}, chunk, head, memory)); });
    expect_error(ErrorCode::invalid_argument, {part},
                 [&] { static_cast<void>(oracle_bounds(tiny.layer(), LogitRule{}, chunk, head, memory)); });
  };
  call("chunk.begin = -1", Chunk{-1, 2, ChunkMode::sparse}, 0, {});
  call("chunk.end = 2", Chunk{2, 2, ChunkMode::sparse}, 0, {});
  call("chunk.end = 1", Chunk{2, 1, ChunkMode::sparse}, 0, {});
  call("query_head = -1", Chunk{0, 2, ChunkMode::sparse}, -1, {});
  call("query_head = 2", Chunk{0, 2, ChunkMode::sparse}, 2, {});
  call("memory = 2", Chunk{2, 4, ChunkMode::sparse}, 0, {0, 2});
  call("memory = -1", Chunk{2, 4, ChunkMode::sparse}, 0, {-1});
  call("memory = 0", Chunk{0, 2, ChunkMode::sparse}, 0, {0});
  EXPECT_NO_THROW(static_cast<void>(oracle_head(tiny.layer(), LogitRule{}, Chunk{2, 4, ChunkMode::sparse}, 1,
                                                std::vector<std::int32_t>{0, 1})));
}

TEST(Oracle, SPEC_13_SizesBesideTheValues) {
  const Tiny tiny;
  const std::vector<std::int32_t> memory{0, 1};
  LogitRule rule;
  rule.scale = -2.0;
  rule.sink = 0.5;
  const OracleBounds bounds = oracle_bounds(tiny.layer(), rule, Chunk{2, 4, ChunkMode::sparse}, 1, memory);
  // Head 1: logits 2 k, so weights e^0, e^2 of the memory and e^1, e^4 of the chunk; ds = 5 u 2 |k|.
  const double w0 = 1;
  const double w1 = std::exp(2.0);
  const double w2 = std::exp(1.0);
  const double w3 = std::exp(4.0);
  const double z = std::exp(0.5);
  const double total_0 = w0 + w1 + w2 + z;
  const double total_1 = total_0 + w3;
  const double ds[] = {0, 10 * kU, 5 * kU, 20 * kU};
  expect_near(bounds.output_size.values,
              {(3 * w0 + 5 * w1 + 7 * w2) / total_0, (3 * w0 + 5 * w1 + 7 * w2 + 11 * w3) / total_1});
  expect_near(bounds.output_weighted_ds.values,
              {(5 * w1 * ds[1] + 7 * w2 * ds[2]) / total_0,
               (5 * w1 * ds[1] + 7 * w2 * ds[2] + 11 * w3 * ds[3]) / total_1},
              1e-19);
  expect_near(bounds.output_mean_ds,
              {(w1 * ds[1] + w2 * ds[2]) / total_0, (w1 * ds[1] + w2 * ds[2] + w3 * ds[3]) / total_1}, 1e-20);
  expect_near(bounds.output_ds, {ds[1], ds[3]}, 1e-21);
  expect_near(bounds.intra_ds, {ds[2], ds[3]}, 1e-21);
  expect_near(bounds.inter_ds, {ds[1], ds[1]}, 1e-21);
  expect_near(bounds.colsum_intra_ds,
              {2 * (w2 / (w2 + z) * ds[2] + w2 / (w2 + w3 + z) * ds[3]), 2 * w3 / (w2 + w3 + z) * ds[3]},
              1e-20);
  expect_near(bounds.colsum_inter_ds, {4 * w0 / (w0 + w1) * ds[1], 4 * w1 / (w0 + w1) * ds[1]}, 1e-20);
  EXPECT_EQ(bounds.output_size.rows, 2);
  EXPECT_EQ(bounds.output_size.columns, 1);
}

/// Every size again, summed straight over the keys that a query sees; rows wider than one, grouped heads,
/// bias.
void expect_sizes(std::int64_t d_value) {
  test::Numbers numbers(21);
  const std::int64_t n = 9;
  const auto width = static_cast<std::size_t>(d_value);
  const std::vector<float> q = numbers.floats(n * 4 * 2);
  const std::vector<float> k = numbers.floats(n * 2 * 2);
  const std::vector<float> v = numbers.floats(n * 2 * d_value);
  const LayerRows layer{Rows::token_major(q.data(), DType::f32, 4, 2),
                        Rows::token_major(k.data(), DType::f32, 2, 2),
                        Rows::token_major(v.data(), DType::f32, 2, d_value),
                        4,
                        2,
                        2,
                        d_value};
  const LogitRule rule{.scale = 2.0, .slope = 0.25, .sink = -1.0};
  const std::vector<std::int32_t> memory{1, 4};
  for (const std::int64_t h : {1, 2}) {
    const std::int64_t g = h / 2;
    const OracleBounds bounds = oracle_bounds(layer, rule, Chunk{5, 9, ChunkMode::sparse}, h, memory);
    for (std::int64_t i = 5; i < 9; ++i) {
      std::vector<std::int64_t> seen{1, 4};
      for (std::int64_t j = 5; j <= i; ++j) seen.push_back(j);
      const Matrix query = reference::read_rows(layer.q, i, i + 1, h, 2);
      double total = std::exp(rule.sink);
      double mean = 0;
      std::vector<double> size(width, 0.0);
      std::vector<double> weighted(width, 0.0);
      for (const std::int64_t j : seen) {
        const Matrix key = reference::read_rows(layer.k, j, j + 1, g, 2);
        const Matrix value = reference::read_rows(layer.v, j, j + 1, g, d_value);
        const double p = std::exp(2 * (query.row(0)[0] * key.row(0)[0] + query.row(0)[1] * key.row(0)[1]) -
                                  0.25 * static_cast<double>(i - j));
        const double ds = logit_error(rule, query.row(0), key.row(0), i, j);
        total += p;
        mean += p * ds;
        for (std::size_t c = 0; c < width; ++c) {
          size[c] += p * std::fabs(value.row(0)[c]);
          weighted[c] += p * ds * std::fabs(value.row(0)[c]);
        }
      }
      for (std::size_t c = 0; c < width; ++c) {
        size[c] /= total;
        weighted[c] /= total;
      }
      expect_near(bounds.output_size.row(i - 5), size, 1e-14);
      expect_near(bounds.output_weighted_ds.row(i - 5), weighted, 1e-20);
      EXPECT_NEAR(bounds.output_mean_ds[static_cast<std::size_t>(i - 5)], mean / total, 1e-20);
    }
    EXPECT_EQ(bounds.output_size.columns, d_value);
    EXPECT_EQ(bounds.output_weighted_ds.columns, d_value);
    EXPECT_EQ(bounds.colsum_intra_ds.size(), 4U);
    EXPECT_EQ(bounds.colsum_inter_ds.size(), 2U);
  }
}

TEST(Oracle, SPEC_13_SizesOfWideRows) {
  expect_sizes(1);  // narrower than the keys
  expect_sizes(3);  // wider
}

TEST(Oracle, SPEC_13_LogitError) {
  const std::vector<double> q{1, -2, 3};
  const std::vector<double> k{4, 5, -6};  // product -24, absolute product 32
  EXPECT_NEAR(logit_error(LogitRule{}, q, k, 9, 2), 7 * kU * 32, 1e-20);
  EXPECT_NEAR(logit_error(LogitRule{.scale = -0.5}, q, k, 9, 2), 7 * kU * 16, 1e-20);
  // Bias: 2 u |a (i - j)| + u |s - a (i - j)|.
  EXPECT_NEAR(logit_error(LogitRule{.slope = 0.5}, q, k, 9, 2), kU * (7 * 32 + 2 * 3.5 + 27.5), 1e-20);
  EXPECT_NEAR(logit_error(LogitRule{.slope = -0.5}, q, k, 9, 2), kU * (7 * 32 + 2 * 3.5 + 20.5), 1e-20);
  EXPECT_NEAR(logit_error(LogitRule{.slope = 0.5}, q, k, 9, 9), kU * (7 * 32 + 24), 1e-20);
  // Cap: the slope at the end of the interval that is nearer to 0, the quotient, and 5 roundings of t tanh.
  const double error = 7 * kU * 32;
  const double slope = 1 / std::pow(std::cosh((24 - error) / 30), 2);
  const double capped = 30 * std::tanh(24.0 / 30);
  EXPECT_NEAR(logit_error(LogitRule{.softcap = 30}, q, k, 9, 2),
              slope * error + kU * 24 * slope + 5 * kU * capped, 1e-19);
  EXPECT_NEAR(logit_error(LogitRule{.softcap = 30, .slope = 0.5}, q, k, 9, 2),
              slope * error + kU * 24 * slope + 5 * kU * capped + kU * (7 + capped + 3.5), 1e-19);
  // Deep in the cap the logit's own error has vanished; at 0 it is all there.
  EXPECT_NEAR(logit_error(LogitRule{.softcap = 0.01}, q, k, 9, 2), 5 * kU * 0.01, 1e-20);
  const std::vector<double> across{4, 5, 2};
  EXPECT_NEAR(logit_error(LogitRule{.softcap = 1}, q, across, 9, 2), 7 * kU * 20, 1e-20);
}

/// The bound is one: logits computed in float err by less.
TEST(Oracle, SPEC_13_FloatLogitsStayInside) {
  test::Numbers numbers(11);
  const std::int64_t d = 24;
  double worst = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<float> q = numbers.floats(d, 3.0F);
    std::vector<float> k = numbers.floats(d, 3.0F);
    LogitRule rule{
        .scale = 0.3F, .softcap = round % 2 == 0 ? 0.0 : 5.0, .slope = round % 3 == 0 ? 0.0 : 0.125};
    float s = 0;
    for (std::size_t x = 0; x < q.size(); ++x) s += q[x] * k[x];
    s *= static_cast<float>(rule.scale);
    if (rule.softcap > 0)
      s = static_cast<float>(rule.softcap) * std::tanh(s / static_cast<float>(rule.softcap));
    s -= static_cast<float>(rule.slope) * 77.0F;
    const std::vector<double> wide_q(q.begin(), q.end());
    const std::vector<double> wide_k(k.begin(), k.end());
    const double error = std::fabs(s - reference::logit(rule, wide_q, wide_k, 100, 23));
    const double bound = logit_error(rule, wide_q, wide_k, 100, 23);
    EXPECT_LE(error, bound);
    worst = std::max(worst, error / bound);
  }
  EXPECT_GT(worst, 0.05);  // and not a bound that nothing could break
}

TEST(Oracle, SPEC_13_AgreesWithTheEngineUnderItsOwnSets) {
  Shape shape;
  shape.n_head = 4;
  shape.n_head_kv = 2;
  shape.d_head = 4;
  shape.d_value = 3;
  shape.capacity = 30;
  Options options;
  options.batch = 8;
  options.chunk = 4;
  options.local = 1;
  options.heavy = 2;
  options.sinks = {0.5F, -1.0F, 0.0F, 1.0F};
  options.alibi = {0.25F, 0.0F, 0.5F, -0.125F};
  test::Numbers numbers(3);
  const std::vector<float> q = numbers.floats(30 * 16);
  const std::vector<float> k = numbers.floats(30 * 8);
  const std::vector<float> v = numbers.floats(30 * 6);
  std::vector<float> out(30 * 12);
  const LayerRows layer{Rows::token_major(q.data(), DType::f32, 4, 4),
                        Rows::token_major(k.data(), DType::f32, 2, 4),
                        Rows::token_major(v.data(), DType::f32, 2, 3),
                        4,
                        2,
                        4,
                        3};
  const std::unique_ptr<Session> session = reference_engine().open(shape, options);
  std::vector<OracleHead> heads;
  session->set_observer([&](const ChunkRecord& record) {
    for (std::int64_t h = 0; h < 4; ++h) {
      const std::span<const std::int32_t> memory(record.memory + h * record.memory_stride,
                                                 static_cast<std::size_t>(record.memory_count));
      const OracleHead head = oracle_head(layer, reference::logit_rule(options, session->options(), 0, h),
                                          record.chunk, h, memory);
      for (std::int64_t t = 0; t < record.row_stride; ++t) {
        EXPECT_EQ(record.lse[h * record.row_stride + t],
                  static_cast<float>(head.lse[static_cast<std::size_t>(t)]));
        EXPECT_EQ(record.colsum_intra[h * record.row_stride + t],
                  static_cast<float>(head.colsum_intra[static_cast<std::size_t>(t)]));
      }
      for (std::int64_t e = 0; e < record.memory_count; ++e) {
        EXPECT_EQ(record.colsum_inter[h * record.memory_stride + e],
                  static_cast<float>(head.colsum_inter[static_cast<std::size_t>(e)]));
      }
      heads.push_back(head);
    }
  });
  session->begin(Step::prefill(30));
  session->attend(0, layer.q, layer.k, layer.v, MutableRows::token_major(out.data(), DType::f32, 4, 3));
  session->end();
  ASSERT_EQ(heads.size(), 32U);
  for (std::size_t i = 0; i < 30; ++i) {
    for (std::size_t h = 0; h < 4; ++h) {
      for (std::size_t c = 0; c < 3; ++c) {
        EXPECT_EQ(heads[i / 4 * 4 + h].output[i % 4].o.size(), 3U);
        EXPECT_EQ(heads[i / 4 * 4 + h].inter[i % 4].o.size(), 3U);
        EXPECT_EQ(out[(i * 4 + h) * 3 + c], static_cast<float>(heads[i / 4 * 4 + h].output[i % 4].o[c]));
      }
    }
  }
}

}  // namespace
}  // namespace headwater::conformance
