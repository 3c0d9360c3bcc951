// Rows in 8 bits (STATE-13): what the kernels restore, and sessions that keep them beside sessions that were given what
// they restore. What a group holds is tested by the kit's case `kv_bits`.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/numbers.hpp"
#include "core/rows_8bit.hpp"
#include "cpu/dispatch.hpp"
#include "headwater/engine.hpp"

namespace headwater::cpu {
namespace {

using core::kGroupBytes;
using core::kGroupElements;

/// Elements of `type` of which NaN is one value.
std::vector<float> floats_of(const std::vector<unsigned char>& bytes, DType type) {
  std::vector<float> values(bytes.size() / dtype_size(type));
  core::widen(bytes.data(), type, std::ssize(values), values.data());
  for (float& value : values) value = std::isnan(value) ? 1e30f : value;
  return values;
}

// All 65536 scales, as files may hold any, at odd addresses.
TEST(Rows8Bit, STATE_13_EveryTableRestoresEveryScale) {
  constexpr std::int64_t kGroups = 65536;
  std::mt19937 random(5);
  std::vector<unsigned char> packed(kGroups * kGroupBytes + 1);
  for (unsigned char& byte : packed) byte = static_cast<unsigned char>(random());
  for (std::int64_t group = 0; group < kGroups; ++group) {
    const auto scale = static_cast<std::uint16_t>(group);
    std::memcpy(packed.data() + 1 + group * kGroupBytes, &scale, sizeof scale);
  }
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    const std::size_t size = dtype_size(type);
    std::vector<unsigned char> expected(static_cast<std::size_t>(kGroups * kGroupElements) * size);
    for (std::int64_t i = 0; i < kGroups * kGroupElements; ++i) {
      const std::int64_t group = i / kGroupElements;
      const auto integer = static_cast<std::int8_t>(
          packed[static_cast<std::size_t>(1 + group * kGroupBytes + 2 + i % kGroupElements)]);
      const float value =
          core::float_from_f16(static_cast<std::uint16_t>(group)) * static_cast<float>(integer);
      core::narrow(&value, 1, type, expected.data() + static_cast<std::size_t>(i) * size);
    }
    for (const Variant& variant : variants()) {
      if (!variant.missing().empty()) continue;
      std::vector<unsigned char> restored(expected.size() + 1);
      variant.kernels->restore_groups(packed.data() + 1, kGroups, type, restored.data() + 1);
      restored.erase(restored.begin());
      EXPECT_TRUE(floats_of(restored, type) == floats_of(expected, type))
          << variant.engine << ' ' << dtype_name(type);
    }
  }
}

/// K and V rows, and queries, of a session: [token][head][width].
struct Sample {
  std::int64_t tokens;
  std::int64_t width;
  std::vector<float> q, k, v;
  Sample(std::int64_t n, std::int64_t d, std::int64_t heads, std::int64_t heads_kv, unsigned seed)
      : tokens(n), width(d) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    q.resize(static_cast<std::size_t>(n * heads * d));
    k.resize(static_cast<std::size_t>(n * heads_kv * d));
    v.resize(k.size());
    for (std::vector<float>* rows : {&q, &k, &v}) {
      for (float& x : *rows) x = normal(random);
    }
  }
};

std::vector<unsigned char> narrowed(const std::vector<float>& values, DType type) {
  std::vector<unsigned char> bytes(values.size() * dtype_size(type));
  core::narrow(values.data(), std::ssize(values), type, bytes.data());
  return bytes;
}

std::vector<unsigned char> restored(const std::vector<float>& values, DType type) {
  const std::vector<unsigned char> rows = narrowed(values, type);
  const std::int64_t groups = std::ssize(values) / kGroupElements;
  std::vector<unsigned char> packed(static_cast<std::size_t>(groups * kGroupBytes));
  core::pack_row(rows.data(), type, std::ssize(values), packed.data());
  std::vector<unsigned char> back(rows.size());
  core::restore_groups(packed.data(), groups, type, back.data());
  return back;
}

constexpr std::int64_t kHeads = 2;
constexpr std::int64_t kLayers = 3;  // the last one of other widths

/// Steps through more than a page of 1024 tokens: a prompt in two calls, decode steps on either side of a key block and a
/// split, a fork whose parent goes on, a fork of a truncated session.
std::vector<std::vector<float>> outputs(const Engine& engine, const Shape& shape, const Options& options,
                                        const std::vector<Sample>& samples,
                                        const std::vector<std::vector<unsigned char>>& k,
                                        const std::vector<std::vector<unsigned char>>& v) {
  std::vector<std::vector<float>> all;
  std::unique_ptr<Session> session = engine.open(shape, options);
  const auto step = [&](Session& of, const Step& asked) {
    const std::int64_t base = of.tokens();
    of.begin(asked);
    for (std::int64_t layer = 0; layer < kLayers; ++layer) {
      const Sample& sample = samples[static_cast<std::size_t>(layer)];
      const std::int64_t d = sample.width;
      const auto size = static_cast<std::int64_t>(dtype_size(shape.kv_type));
      const std::vector<unsigned char> q =
          narrowed({sample.q.begin() + base * kHeads * d, sample.q.begin() + (base + asked.n) * kHeads * d},
                   shape.kv_type);
      std::vector<float> out(static_cast<std::size_t>(asked.n * kHeads * d));
      of.attend(
          layer, Rows::token_major(q.data(), shape.kv_type, kHeads, d),
          Rows::token_major(k[static_cast<std::size_t>(layer)].data() + base * d * size, shape.kv_type, 1, d),
          Rows::token_major(v[static_cast<std::size_t>(layer)].data() + base * d * size, shape.kv_type, 1, d),
          MutableRows::token_major(out.data(), DType::f32, kHeads, d));
      all.push_back(out);
    }
    of.end();
  };
  for (const std::int64_t tokens : {126, 254}) {  // decode on either side of whole pieces of restored rows
    const std::unique_ptr<Session> some = engine.open(shape, options);
    step(*some, Step::prefill(tokens));
    for (int i = 0; i < 4; ++i) step(*some, Step::decode());
  }
  step(*session, Step::prefill(1000, 1350));
  step(*session, Step::prefill(350));
  for (std::int64_t i = 0; i < 4; ++i) step(*session, Step::decode(1 + i));
  const std::unique_ptr<Session> fork = session->fork();
  step(*session, Step::decode(7));
  step(*session, Step::decode(1));
  step(*fork, Step::prefill(300));
  step(*fork, Step::decode(2));
  session->truncate(1361);
  session = session->fork();  // of fewer tokens than its parent, now gone, restored
  step(*session, Step::decode(7));
  return all;
}

TEST(Rows8Bit, STATE_13_SessionsComputeWithRestoredRows) {
  Shape shape{
      .n_layer = kLayers, .n_head = kHeads, .n_head_kv = 1, .d_head = 64, .d_value = 64, .capacity = 1700};
  std::vector<Sample> samples;
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    samples.emplace_back(1700, layer == 2 ? 160 : 64, kHeads, 1, 11 + static_cast<unsigned>(layer));
  }
  for (const Engine* engine : engines()) {
    if (!engine->claims().kv_bits || engine->claims().double_arithmetic ||
        !engine->unavailable_because().empty())
      continue;
    for (const auto& [type, select] :
         {std::pair{DType::f32, Select::h2o}, std::pair{DType::f16, Select::blocks},
          std::pair{DType::bf16, Select::blocks}, std::pair{DType::bf16, Select::sketches}}) {
      shape.kv_type = type;
      std::vector<std::vector<unsigned char>> rows[4];
      for (const Sample& sample : samples) {
        rows[0].push_back(narrowed(sample.k, type)), rows[1].push_back(narrowed(sample.v, type));
        rows[2].push_back(restored(sample.k, type)), rows[3].push_back(restored(sample.v, type));
      }
      Options options;
      options.chunk = 512, options.local = 32, options.heavy = 96, options.pinned = 8, options.page = 1024;
      options.dense_layers = {0};
      options.layers = {{}, {}, {.d_head = 160, .d_value = 160}};
      options.select = select, options.checkpoints = 1, options.threads = 2;
      const auto expected = outputs(*engine, shape, options, samples, rows[2], rows[3]);
      options.kv_bits = 8;
      const auto got = outputs(*engine, shape, options, samples, rows[0], rows[1]);
      ASSERT_EQ(got.size(), expected.size());
      for (std::size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(got[i] == expected[i]) << engine->name() << ' ' << dtype_name(type) << " select "
                                           << static_cast<int>(select) << " call " << i;
      }
    }
  }
}

}  // namespace
}  // namespace headwater::cpu
