// The bundled model with its matrices quantised, end to end: as good as the same numbers in F32, and nearly as good as
// the weights that were quantised.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <string>

#include "runtime/gguf/byte_product.hpp"
#include "runtime/gguf/gguf.hpp"
#include "runtime/gguf/row_kernels.hpp"
#include "tests/gguf/builder.hpp"
#include "tests/model/quantise.hpp"
#include "tests/model/support.hpp"

namespace headwater::runtime::testing {
namespace {

/// The type of the matrix of this name.
using Types = std::function<TensorType(const std::string&)>;

/// The bundled model in other types of matrices, made in memory.
class Copy {
 public:
  /// The matrices in these types, or, `widened`, in F32 with the values that these blocks stand for.
  Copy(const Types& types, bool widened) {
    const GgufFile& file = *bundled_file();
    const std::string a = "qwen3.";
    builder_.add_text("general.architecture", "qwen3");
    for (const char* key :
         {"context_length", "block_count", "embedding_length", "feed_forward_length", "attention.head_count",
          "attention.head_count_kv", "attention.key_length", "attention.value_length"}) {
      builder_.add(a + key, kU32, static_cast<std::uint32_t>(file.integer(a + key, 1, 1 << 20)));
    }
    for (const char* key : {"attention.layer_norm_rms_epsilon", "rope.freq_base"}) {
      builder_.add(a + key, kF32, static_cast<float>(file.number(a + key)));
    }
    for (const Tensor& tensor : file.tensors())
      add(tensor, tensor.dims.size() == 2 ? types(tensor.name) : TensorType::f32, widened);
    builder_.data_bytes = data_.size();
    bytes_ = builder_.build();
    std::copy(data_.begin(), data_.end(), bytes_.end() - static_cast<std::ptrdiff_t>(data_.size()));
  }
  /// Reads the weights where they are: this object must outlive it.
  [[nodiscard]] std::shared_ptr<const Model> load(Precision precision = Precision::f32) const& {
    return Model::load(std::make_shared<const GgufFile>(GgufFile::parse(bytes_, "copy.gguf")),
                       {precision, 2});
  }

 private:
  void add(const Tensor& tensor, TensorType type, bool widened) {
    std::vector<std::uint64_t> dims(tensor.dims.begin(), tensor.dims.end());
    const std::int64_t columns = tensor.dims[0];
    std::vector<float> row(static_cast<std::size_t>(columns));
    std::vector<std::byte> blocks;
    const auto stored = widened ? TensorType::f32 : type;
    builder_.add_tensor(tensor.name, dims, tensor_type_info(stored).ggml_id, data_.size());
    for (std::int64_t r = 0; r < tensor.rows(); ++r) {
      dequantize_row(tensor.type, tensor.row(r), columns, row.data());
      blocks.clear();
      if (type != TensorType::f32) append_quantised(type, row, blocks);
      if (type != TensorType::f32 && widened) dequantize_row(type, blocks.data(), columns, row.data());
      if (stored == TensorType::f32) {
        const auto plain = std::as_bytes(std::span(row));
        blocks.assign(plain.begin(), plain.end());
      }
      data_.insert(data_.end(), blocks.begin(), blocks.end());
    }
    data_.resize((data_.size() + 31) / 32 * 32);
  }

  Builder builder_;
  std::vector<std::byte> data_;
  std::vector<std::byte> bytes_;
};

struct Outcome {
  std::vector<float> logits;   // of all tokens of a prefill
  std::vector<float> decoded;  // after one more token
  double loss = 0;             // nats a token
};

Outcome run(const std::shared_ptr<const Model>& model) {
  const auto& ids = reference_logits().ids;
  const auto n = static_cast<std::int64_t>(ids.size());
  const auto vocabulary = static_cast<std::size_t>(model->config().vocabulary);
  TransformerOptions chosen = options(n, DType::f32);
  chosen.attention.dense = true;
  Transformer transformer(model, chosen);
  transformer.run(Step::prefill(n - 1), std::span(ids).first(ids.size() - 1));
  Outcome outcome;
  outcome.logits.resize((ids.size() - 1) * vocabulary);
  transformer.logits(0, n - 1, outcome.logits);
  transformer.run(Step::decode(), std::span(ids).last(1));
  outcome.decoded.resize(vocabulary);
  transformer.logits(0, 1, outcome.decoded);
  for (std::size_t t = 0; t + 1 < ids.size(); ++t) {
    const auto row = std::span(outcome.logits).subspan(t * vocabulary, vocabulary);
    const double most = *std::max_element(row.begin(), row.end());
    double sum = 0;
    for (const float logit : row) sum += std::exp(logit - most);
    outcome.loss += (most + std::log(sum) - row[static_cast<std::size_t>(ids[t + 1])]) /
                    static_cast<double>(ids.size() - 1);
  }
  return outcome;
}

double worst(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    most = std::max(most, std::fabs(static_cast<double>(a[i]) - b[i]));
  return most;
}

struct Case {
  TensorType type;
  double change;  ///< most that the loss may change, in nats a token: about twice what was measured
};

class Quantised : public ::testing::TestWithParam<Case> {};

/// The outcome of the blocks, after it was held against that of the numbers that they stand for.
Outcome expect_what_blocks_stand_for(const Types& types) {
  const Copy stored(types, false);
  const Copy widened(types, true);
  const Outcome outcome = run(stored.load());
  const Outcome wanted = run(widened.load());
  EXPECT_TRUE(outcome.logits == wanted.logits) << "panels are widened to the same numbers";
  // One row is summed in another order.
  EXPECT_LE(worst(outcome.decoded, wanted.decoded), 1e-3);
  return outcome;
}

TEST_P(Quantised, IsWhatItsBlocksStandFor) {
  const Outcome stored = expect_what_blocks_stand_for([](const std::string&) { return GetParam().type; });
  static const double plain = run(bundled(Precision::f32)).loss;
  RecordProperty("change_of_loss", std::to_string(stored.loss - plain));
  EXPECT_LE(std::fabs(stored.loss - plain), GetParam().change) << stored.loss - plain;
  EXPECT_NE(stored.loss, plain);
}

// As files have them: matrices of one product in several types, others in other layers; some of them not quantised.
TEST(QuantisedTypes, MixedInOneModel) {
  constexpr TensorType kAll[] = {TensorType::q4_k, TensorType::q6_k,  TensorType::q8_0,   TensorType::q4_1,
                                 TensorType::f32,  TensorType::q5_0,  TensorType::q5_k,   TensorType::q5_1,
                                 TensorType::q4_0, TensorType::mxfp4, TensorType::iq4_nl, TensorType::q2_k,
                                 TensorType::q3_k, TensorType::iq4_xs};
  // ggml's own mixture: values and the last matrix of the feed-forward in more bits, in every other layer.
  (void)expect_what_blocks_stand_for([](const std::string& name) {
    const bool more = name.find("attn_v") != std::string::npos || name.find("ffn_down") != std::string::npos;
    const bool even = (name.find("blk.") == 0) && (name[4] - '0') % 2 == 0;
    return name == "token_embd.weight" || (more && even) ? TensorType::q6_k : TensorType::q4_k;
  });
  // Every type beside every other one.
  std::map<std::string, TensorType> chosen;
  (void)expect_what_blocks_stand_for([&](const std::string& name) {
    return chosen.emplace(name, kAll[chosen.size() % std::size(kAll)]).first->second;
  });
}

// Products in bytes change the loss by far less than most blocks do.
TEST_P(Quantised, InBytesIsNearly) {
  if (row_kernels().bytes == nullptr) GTEST_SKIP() << "no products in bytes: " << row_kernels().isa;
  const Copy stored([](const std::string&) { return GetParam().type; }, false);
  const Outcome exact = run(stored.load());
  const Outcome bytes = run(stored.load(Precision::int8));
  RecordProperty("change_of_loss", std::to_string(bytes.loss - exact.loss));
  EXPECT_LE(std::fabs(bytes.loss - exact.loss), 0.004) << bytes.loss - exact.loss;
  EXPECT_FALSE(bytes.logits == exact.logits);  // Q6_K: by BF16 at least, where there is that
}

INSTANTIATE_TEST_SUITE_P(Types, Quantised,
                         ::testing::Values(Case{TensorType::q8_0, 0.002}, Case{TensorType::q6_k, 0.015},
                                           Case{TensorType::q5_k, 0.01}, Case{TensorType::q4_k, 0.012},
                                           Case{TensorType::q4_0, 0.055}, Case{TensorType::q4_1, 0.045},
                                           Case{TensorType::q5_0, 0.05}, Case{TensorType::q5_1, 0.018},
                                           Case{TensorType::iq4_nl, 0.05}, Case{TensorType::mxfp4, 0.15},
                                           Case{TensorType::q2_k, 1.1}, Case{TensorType::q3_k, 0.17},
                                           Case{TensorType::iq4_xs, 0.05}),
                         [](const auto& one) { return std::string(tensor_type_info(one.param.type).name); });

}  // namespace
}  // namespace headwater::runtime::testing
