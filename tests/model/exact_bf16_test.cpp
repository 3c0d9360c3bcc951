// The transformer in BF16 without any tolerance: weights and activations are whole numbers that BF16 holds, so that every
// stage of every row is what integers make of it. A row of ones of either sign is its own norm; a gate far above zero lets
// its value through; each token attends to itself alone, as its logit is hundreds above the others.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "runtime/model/kernels/kernels.hpp"
#include "tests/gguf/builder.hpp"
#include "tests/model/support.hpp"

namespace headwater::runtime::testing {
namespace {

struct Sizes {
  std::int64_t width = 64, heads = 1, heads_kv = 1, d_head = 64, d_value = 8, feed_forward = 32,
               vocabulary = 60;
  bool attends = false;  ///< else the output projection is zero
  bool feeds = false;    ///< else the last matrix of the feed-forward is
};

enum class Matrix : std::uint32_t { embedding, key, value, output, gate, up, down, head };

std::uint32_t mixed(Matrix matrix, std::int64_t row, std::int64_t column) {
  std::uint32_t x = static_cast<std::uint32_t>(matrix) * 0x9E3779B9U ^
                    static_cast<std::uint32_t>(row) * 0x85EBCA6BU ^
                    static_cast<std::uint32_t>(column) * 0xC2B2AE35U;
  x ^= x >> 16;
  x *= 0x7FEB352DU;
  x ^= x >> 15;
  x *= 0x846CA68BU;
  return x ^ (x >> 16);
}
int sign(Matrix matrix, std::int64_t row, std::int64_t column) {
  return (mixed(matrix, row, column) & 1U) == 0 ? 1 : -1;
}
/// -1, 0 or 1.
int third(Matrix matrix, std::int64_t row, std::int64_t column) {
  return static_cast<int>(mixed(matrix, row, column) % 3) - 1;
}

class ExactModel {
 public:
  explicit ExactModel(const Sizes& sizes) : sizes_(sizes) {
    Builder b;
    b.add_text("general.architecture", "llama");
    for (const auto& [key, value] : {std::pair<const char*, std::int64_t>{"context_length", 4096},
                                     {"block_count", 1},
                                     {"embedding_length", sizes.width},
                                     {"feed_forward_length", sizes.feed_forward},
                                     {"attention.head_count", sizes.heads},
                                     {"attention.head_count_kv", sizes.heads_kv},
                                     {"attention.key_length", sizes.d_head},
                                     {"attention.value_length", sizes.d_value}}) {
      b.add(std::string("llama.") + key, kU32, static_cast<std::uint32_t>(value));
    }
    b.add("llama.attention.layer_norm_rms_epsilon", kF32, 1e-6F);
    const std::int64_t queries = sizes.heads * sizes.d_head;
    const std::int64_t keys = sizes.heads_kv * sizes.d_head;
    const std::int64_t values = sizes.heads_kv * sizes.d_value;
    const std::int64_t attended = sizes.heads * sizes.d_value;
    std::vector<float> data;
    const auto add = [&](const char* name, std::int64_t columns, std::int64_t rows, const auto& element) {
      std::vector<std::uint64_t> dims = {static_cast<std::uint64_t>(columns)};
      if (rows > 0) dims.push_back(static_cast<std::uint64_t>(rows));
      b.add_tensor(name, dims, kF32Tensor, data.size() * sizeof(float));
      for (std::int64_t r = 0; r < std::max<std::int64_t>(rows, 1); ++r) {
        for (std::int64_t c = 0; c < columns; ++c) data.push_back(static_cast<float>(element(r, c)));
      }
      data.resize((data.size() + 7) / 8 * 8);
    };
    const auto one = [](std::int64_t, std::int64_t) { return 1; };
    const auto of = [](Matrix matrix) {
      return [matrix](std::int64_t r, std::int64_t c) { return third(matrix, r, c); };
    };
    add("token_embd.weight", sizes.width, sizes.vocabulary,
        [](std::int64_t r, std::int64_t c) { return embedded(r, c); });
    add("output.weight", sizes.width, sizes.vocabulary, of(Matrix::head));
    for (const char* const name : {"output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"}) {
      add(name, sizes.width, 0, one);
    }
    // Queries are the keys of their group.
    const std::int64_t group = sizes.heads / sizes.heads_kv;
    add("blk.0.attn_q.weight", sizes.width, queries, [&](std::int64_t r, std::int64_t c) {
      return third(Matrix::key, r / sizes.d_head / group * sizes.d_head + r % sizes.d_head, c);
    });
    add("blk.0.attn_k.weight", sizes.width, keys, of(Matrix::key));
    add("blk.0.attn_v.weight", sizes.width, values, of(Matrix::value));
    add("blk.0.attn_output.weight", attended, sizes.width,
        [&](std::int64_t r, std::int64_t c) { return sizes.attends ? sign(Matrix::output, r, c) : 0; });
    add("blk.0.ffn_gate.weight", sizes.width, sizes.feed_forward,
        [&](std::int64_t r, std::int64_t c) { return c == 0 ? 32 : few(Matrix::gate, r, c); });
    add("blk.0.ffn_up.weight", sizes.width, sizes.feed_forward,
        [&](std::int64_t r, std::int64_t c) { return few(Matrix::up, r, c); });
    add("blk.0.ffn_down.weight", sizes.feed_forward, sizes.width,
        [&](std::int64_t r, std::int64_t c) { return sizes.feeds ? third(Matrix::down, r, c) : 0; });
    b.data_bytes = data.size() * sizeof(float);
    bytes_ = b.build();
    std::memcpy(bytes_.data() + bytes_.size() - b.data_bytes, data.data(), b.data_bytes);
  }
  /// Reads the weights where they are: this object must outlive it.
  [[nodiscard]] std::shared_ptr<const Model> load() const& {
    return Model::load(std::make_shared<const GgufFile>(GgufFile::parse(bytes_, "exact.gguf")),
                       {Precision::bf16, 2});
  }

  /// The residual row of a token after attention, and after the layer.
  struct Rows {
    std::vector<float> middle, output;
  };
  [[nodiscard]] Rows rows_of(std::int32_t id) const {
    Rows rows;
    const std::int64_t group = sizes_.heads / sizes_.heads_kv;
    std::vector<int> values;
    for (std::int64_t r = 0; r < sizes_.heads_kv * sizes_.d_value; ++r)
      values.push_back(product(Matrix::value, r, id));
    std::vector<float> hidden;
    for (std::int64_t r = 0; sizes_.feeds && r < sizes_.feed_forward; ++r) {
      int gate = 32;
      int up = few(Matrix::up, r, 0);
      for (const std::int64_t c : places(r)) {
        gate += few(Matrix::gate, r, c) * embedded(id, c);
        up += few(Matrix::up, r, c) * embedded(id, c);
      }
      hidden.push_back(static_cast<float>(gate * up));
    }
    std::vector<std::uint16_t> narrow(hidden.size());
    kernels().to_bf16(hidden.data(), static_cast<std::int64_t>(hidden.size()), narrow.data());
    for (std::int64_t i = 0; i < sizes_.width; ++i) {
      std::int64_t sum = embedded(id, i);
      for (std::int64_t c = 0; sizes_.attends && c < sizes_.heads * sizes_.d_value; ++c) {
        const std::int64_t from = c / sizes_.d_value / group * sizes_.d_value + c % sizes_.d_value;
        sum += sign(Matrix::output, i, c) * values[static_cast<std::size_t>(from)];
      }
      rows.middle.push_back(static_cast<float>(sum));
      for (std::size_t c = 0; c < narrow.size(); ++c) {
        const std::uint32_t wide = std::uint32_t{narrow[c]} << 16;
        float value = 0;
        std::memcpy(&value, &wide, sizeof value);
        sum += third(Matrix::down, i, static_cast<std::int64_t>(c)) * static_cast<std::int64_t>(value);
      }
      rows.output.push_back(static_cast<float>(sum));
    }
    return rows;
  }
  [[nodiscard]] float logit(std::int32_t id, std::int64_t of) const {
    return static_cast<float>(product(Matrix::head, of, id));
  }

 private:
  /// 1 or -1; the first element is 1.
  static int embedded(std::int64_t id, std::int64_t i) { return i == 0 ? 1 : sign(Matrix::embedding, id, i); }
  [[nodiscard]] int product(Matrix matrix, std::int64_t row, std::int32_t id) const {
    int sum = 0;
    for (std::int64_t c = 0; c < sizes_.width; ++c) sum += third(matrix, row, c) * embedded(id, c);
    return sum;
  }
  /// Where the matrices of the feed-forward have elements besides the first column: so few that a gate stays far above 0.
  [[nodiscard]] std::vector<std::int64_t> places(std::int64_t row) const {
    std::vector<std::int64_t> columns;
    for (std::int64_t c = 1 + first_place(row); c < sizes_.width; c += kStride) columns.push_back(c);
    return columns;
  }
  /// Of even rows from the second column on, of odd ones from the last one back.
  [[nodiscard]] std::int64_t first_place(std::int64_t row) const {
    const std::int64_t place = row / 2 % kStride;
    return row % 2 == 0 ? place : (sizes_.width - 2 - place) % kStride;
  }
  [[nodiscard]] int few(Matrix matrix, std::int64_t row, std::int64_t column) const {
    if (column == 0) return matrix == Matrix::up ? third(matrix, row, 0) : 0;
    if ((column - 1) % kStride != first_place(row)) return 0;
    return column + 1 == sizes_.width ? sign(matrix, row, column) : third(matrix, row, column);
  }

  Sizes sizes_;
  const std::int64_t kStride = std::max<std::int64_t>(1, sizes_.width / 8);
  std::vector<std::byte> bytes_;
};

/// A prompt and a decode step of 20 tokens, both in BF16, with keys and values in these types.
void expect_exact(const Sizes& sizes, DType cache, const ExactModel& model,
                  const std::shared_ptr<const Model>& loaded) {
  constexpr std::int64_t n = 350;  // blocks of every height
  constexpr std::int64_t kDecoded = 20;
  TransformerOptions chosen = options(n + kDecoded, cache);
  if (cache == DType::bf16) chosen.engine = "cpu";
  chosen.attention.dense = true;
  Transformer transformer(loaded, chosen);
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < n + kDecoded; ++i)
    ids.push_back(static_cast<std::int32_t>((i * 37 + i / 3) % 20));
  ids.back() = static_cast<std::int32_t>(sizes.vocabulary - 1);
  std::map<std::int32_t, ExactModel::Rows> wanted;
  for (const std::int32_t id : ids) {
    if (!wanted.contains(id)) wanted.emplace(id, model.rows_of(id));
  }
  std::int64_t begin = 0;
  const auto width = static_cast<std::size_t>(sizes.width);
  transformer.set_observer([&](const LayerView& view) {
    const bool middle = view.stage == LayerView::Stage::middle;
    if (!middle && view.stage != LayerView::Stage::output) return;
    for (std::int64_t t = 0; t < view.n; ++t) {
      const ExactModel::Rows& rows = wanted.at(ids[static_cast<std::size_t>(begin + t)]);
      const float* const got = view.residual + t * sizes.width;
      const std::vector<float>& right = middle ? rows.middle : rows.output;
      for (std::size_t i = 0; i < width; ++i) {
        ASSERT_EQ(got[i], right[i]) << (middle ? "attention" : "feed-forward") << " of token " << begin + t
                                    << ", element " << i;
      }
    }
  });
  transformer.run(Step::prefill(n), std::span(ids).first(static_cast<std::size_t>(n)));
  if (::testing::Test::HasFailure()) return;
  begin = n;
  transformer.run(Step::decode(kDecoded), std::span(ids).last(kDecoded));
  if (sizes.attends || sizes.feeds || ::testing::Test::HasFailure()) return;
  // Rows that are their own norm again.
  const auto vocabulary = static_cast<std::size_t>(sizes.vocabulary);
  std::vector<float> logits(kDecoded * vocabulary);
  transformer.logits(0, kDecoded, logits);
  for (std::size_t t = 0; t < kDecoded; t += 19) {
    for (std::size_t of = 0; of < vocabulary; ++of) {
      ASSERT_EQ(logits[t * vocabulary + of],
                model.logit(ids[static_cast<std::size_t>(n) + t], static_cast<std::int64_t>(of)))
          << t << ", " << of;
    }
  }
}

class ExactBf16Sizes : public ::testing::TestWithParam<Sizes> {
 protected:
  void SetUp() override {
    if (native_precision() != Precision::bf16) GTEST_SKIP() << "this processor does not multiply BF16";
  }
};

TEST_P(ExactBf16Sizes, EveryRowIsWhatIntegersMakeOfIt) {
  const ExactModel model(GetParam());
  const auto loaded = model.load();
  for (const DType cache : {DType::bf16, DType::f16, DType::f32}) {
    SCOPED_TRACE(dtype_name(cache));
    expect_exact(GetParam(), cache, model, loaded);
    if (!GetParam().attends || HasFailure()) break;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, ExactBf16Sizes,
    ::testing::Values(
        Sizes{.feed_forward = 53248, .feeds = true}, Sizes{.feed_forward = 100, .feeds = true},
        Sizes{.width = 12288, .feed_forward = 96, .feeds = true},
        Sizes{.heads = 64, .heads_kv = 8, .d_head = 128, .d_value = 128, .attends = true},
        Sizes{.width = 200, .heads = 6, .heads_kv = 2, .d_head = 96, .d_value = 200, .attends = true},
        Sizes{.vocabulary = 151936}),
    [](const auto& one) {
      const Sizes& sizes = one.param;
      return (sizes.feeds     ? "FeedForward"
              : sizes.attends ? "Heads"
                              : "Vocabulary") +
             std::to_string(sizes.feeds     ? sizes.width * 100000 + sizes.feed_forward
                            : sizes.attends ? sizes.heads * sizes.d_value
                                            : sizes.vocabulary);
    });

}  // namespace
}  // namespace headwater::runtime::testing
