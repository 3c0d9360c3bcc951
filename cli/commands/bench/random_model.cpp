#include "cli/commands/bench/random_model.hpp"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "headwater/error.hpp"
#include "runtime/model/aligned_buffer.hpp"
#include "runtime/tokenizer/byte_alphabet.hpp"

namespace headwater::bench {

namespace {

using runtime::TensorType;

constexpr std::uint64_t kAlignment = 64;  // a cache line; GGUF's default is half of one

/// Value types as a file numbers them.
enum ValueType : std::uint32_t { kU32 = 4, kI32 = 5, kF32 = 6, kText = 8, kArray = 9 };

/// general.file_type, llama.cpp's number of files whose matrices are mostly of a type, in the order of TensorType; of the
/// K types the small variant, which has the fewest others.
constexpr std::array<std::int64_t, 16> kFileTypes = {0, 1, 32, 7, 2, 3, 8, 9, 14, 16, 18, 25, 38, 21, 11, 30};

class HeaderWriter {
 public:
  template <typename T>
  void number(T value) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof value);
    std::memcpy(bytes_.data() + at, &value, sizeof value);
  }
  void text(std::string_view text) {
    number<std::uint64_t>(text.size());
    for (const char c : text) bytes_.push_back(static_cast<std::byte>(c));
  }
  void entry(std::string_view key, std::string_view value) {
    begin_entry(key);
    number<std::uint32_t>(kText);
    text(value);
  }
  void entry(std::string_view key, std::int64_t value) {
    begin_entry(key);
    number<std::uint32_t>(kU32);
    number(static_cast<std::uint32_t>(value));
  }
  void entry(std::string_view key, float value) {
    begin_entry(key);
    number<std::uint32_t>(kF32);
    number(value);
  }
  void entry(std::string_view key, std::span<const std::string> values) {
    begin_array(key, kText, values.size());
    for (const std::string& value : values) text(value);
  }
  void entry(std::string_view key, std::span<const std::int32_t> values) {
    begin_array(key, kI32, values.size());
    for (const std::int32_t value : values) number(value);
  }
  [[nodiscard]] std::uint64_t entries() const { return entries_; }
  void append(const std::vector<std::byte>& bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void pad() { bytes_.resize((bytes_.size() + kAlignment - 1) / kAlignment * kAlignment); }
  [[nodiscard]] std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  void begin_entry(std::string_view key) {
    text(key);
    ++entries_;
  }
  void begin_array(std::string_view key, ValueType type, std::uint64_t size) {
    begin_entry(key);
    number<std::uint32_t>(kArray);
    number<std::uint32_t>(type);
    number(size);
  }

  std::vector<std::byte> bytes_;
  std::uint64_t entries_ = 0;
};

/// SplitMix64 (Steele, Lea and Flood, 2014).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    state_ += 0x9E3779B97F4A7C15;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  void fill(std::byte* out, std::int64_t n) {
    for (; n > 0; out += 8, n -= 8) {
      const std::uint64_t word = next();
      std::memcpy(out, &word, static_cast<std::size_t>(std::min<std::int64_t>(n, 8)));
    }
  }
  /// Uniform in [-size, size).
  float within(float size) {
    constexpr float kUnit = 0x1p-23F;
    return size * (static_cast<float>(next() >> 40) * kUnit - 1.0F);
  }

 private:
  std::uint64_t state_;
};

/// The nearest half; for values below the largest one.
std::uint16_t half_of(float value) {
  constexpr float kSmallestNormal = 0x1p-14F;
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  const std::uint32_t sign = (bits >> 16) & 0x8000;
  const float size = std::fabs(value);
  const std::uint32_t rounded = size < kSmallestNormal
                                    ? static_cast<std::uint32_t>(std::lround(size * 0x1p24F))
                                    : ((bits & 0x7fffffff) + 0x1000 - 0x38000000) >> 13;
  return static_cast<std::uint16_t>(sign | rounded);
}

std::uint16_t bf16_of(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x8000) >> 16);
}

void put(std::byte* at, std::uint16_t value) { std::memcpy(at, &value, sizeof value); }

/// Deviations of what uniformly random bits of a block stand for, where its scale is 1. K types and IQ4_XS: a scale of four or
/// six bits or a signed one of six or eight for a run, times a code.
constexpr float kDeviationQ8 = 73.9F;
constexpr float kDeviationQ4 = 4.61F;
constexpr float kDeviationQ5 = 9.23F;
constexpr float kDeviationQ4K = 169.0F;  // the minima's codes are the scales'
constexpr float kDeviationQ5K = 470.0F;
constexpr float kDeviationIq4 = 67.4F;
constexpr float kDeviationMxfp4 = 5.85F;
constexpr float kDeviationQ6K = 1366.0F;
constexpr float kDeviationQ2K = 13.9F;
constexpr float kDeviationQ3K = 43.3F;
constexpr float kDeviationIq4Xs = 1245.0F;
// Minima near half of the largest code; of Q4 types a whole one, as which OpenVINO GenAI stores it.
constexpr float kMeanQ4 = 8.0F;
constexpr float kMeanQ5 = 15.5F;
constexpr float kMeanQ2 = 1.5F;

/// One block of random bits with scales that make `deviation`. Their sign is random: the mean of a type's codes, in every
/// row the same, would add up from layer to layer until all prompts have the same logits.
void random_block(TensorType type, float deviation, Random& random, std::byte* block) {
  const std::int64_t bytes = runtime::tensor_type_info(type).block_bytes;
  if ((random.next() & 1) != 0) deviation = -deviation;
  random.fill(block, bytes);
  switch (type) {
    case TensorType::q8_0: put(block, half_of(deviation / kDeviationQ8)); break;
    case TensorType::q4_0: put(block, half_of(deviation / kDeviationQ4)); break;
    case TensorType::q5_0: put(block, half_of(deviation / kDeviationQ5)); break;
    // Their minima are added, those of the K types taken off.
    case TensorType::q4_1:
      put(block, half_of(deviation / kDeviationQ4));
      put(block + 2, half_of(deviation / kDeviationQ4 * -kMeanQ4));
      break;
    case TensorType::q5_1:
      put(block, half_of(deviation / kDeviationQ5));
      put(block + 2, half_of(deviation / kDeviationQ5 * -kMeanQ5));
      break;
    case TensorType::q4_k:
      std::memcpy(block + 8, block + 4, 4);
      for (int i = 12; i < 16; ++i) block[i] = (block[i] & std::byte{15}) | (block[i] << 4);
      put(block, half_of(deviation / kDeviationQ4K));
      put(block + 2, half_of(deviation / kDeviationQ4K * kMeanQ4));
      break;
    case TensorType::q5_k:
      put(block, half_of(deviation / kDeviationQ5K));
      put(block + 2, half_of(deviation / kDeviationQ5K * kMeanQ5));
      break;
    case TensorType::q2_k:
      put(block + bytes - 4, half_of(deviation / kDeviationQ2K));
      put(block + bytes - 2, half_of(deviation / kDeviationQ2K * kMeanQ2));
      break;
    case TensorType::q3_k: put(block + bytes - 2, half_of(deviation / kDeviationQ3K)); break;
    case TensorType::iq4_xs: put(block, half_of(deviation / kDeviationIq4Xs)); break;
    case TensorType::iq4_nl: put(block, half_of(deviation / kDeviationIq4)); break;
    case TensorType::mxfp4:  // a power of two: the nearest to the deviation
      *block = static_cast<std::byte>(128 + std::lround(std::log2(std::fabs(deviation) / kDeviationMxfp4)));
      break;
    case TensorType::q6_k: put(block + bytes - 2, half_of(deviation / kDeviationQ6K)); break;
    default: break;
  }
}

void random_row(TensorType type, std::int64_t n, Random& random, std::byte* out) {
  const float deviation = 1.0F / std::sqrt(static_cast<float>(n));
  const runtime::TensorTypeInfo& info = runtime::tensor_type_info(type);
  if (info.block_elements > 1) {
    for (std::int64_t at = 0; at < n; at += info.block_elements, out += info.block_bytes) {
      random_block(type, deviation, random, out);
    }
    return;
  }
  const float size = deviation * std::sqrt(3.0F);
  for (std::int64_t i = 0; i < n; ++i, out += info.block_bytes) {
    const float value = random.within(size);
    if (type == TensorType::f32) {
      std::memcpy(out, &value, sizeof value);
    } else {
      put(out, type == TensorType::f16 ? half_of(value) : bf16_of(value));
    }
  }
}

/// A norm's weights near 1; a bias near 0.
void random_vector(bool bias, std::int64_t n, Random& random, std::byte* out) {
  constexpr float kSpread = 0.1F;
  for (std::int64_t i = 0; i < n; ++i, out += sizeof(float)) {
    const float value = (bias ? 0.0F : 1.0F) + random.within(kSpread);
    std::memcpy(out, &value, sizeof value);
  }
}

/// A tokenizer of bytes, one merge, as no real file has none, and an end of texts; the other tokens are unused, named
/// as llama.cpp names them. A smaller vocabulary, of the project's own benchmarks, has none ("no_vocab").
void write_tokenizer(std::int64_t vocabulary, HeaderWriter& metadata) {
  constexpr std::int64_t kLeast = 258;
  if (vocabulary < kLeast) {
    metadata.entry("tokenizer.ggml.model", "no_vocab");
    return;
  }
  enum Kind : std::int32_t { kNormal = 1, kControl = 3, kUnused = 5 };
  const runtime::ByteAlphabet alphabet;
  std::vector<std::string> tokens;
  tokens.reserve(static_cast<std::size_t>(vocabulary));
  for (int byte = 0; byte < 256; ++byte)
    tokens.push_back(alphabet.character(static_cast<std::uint8_t>(byte)));
  const std::array merges = {fmt::format("{} t", alphabet.character(' '))};
  tokens.push_back(alphabet.character(' ') + "t");
  std::vector<std::int32_t> kinds(static_cast<std::size_t>(vocabulary), kUnused);
  std::fill_n(kinds.begin(), tokens.size(), kNormal);
  const auto end = static_cast<std::int64_t>(tokens.size());
  kinds[tokens.size()] = kControl;
  tokens.emplace_back("<|endoftext|>");
  while (tokens.size() < kinds.size()) tokens.push_back(fmt::format("[PAD{}]", tokens.size()));
  metadata.entry("tokenizer.ggml.model", "gpt2");
  metadata.entry("tokenizer.ggml.pre", "qwen2");
  metadata.entry("tokenizer.ggml.tokens", tokens);
  metadata.entry("tokenizer.ggml.token_type", kinds);
  metadata.entry("tokenizer.ggml.merges", merges);
  metadata.entry("tokenizer.ggml.bos_token_id", end);
  metadata.entry("tokenizer.ggml.eos_token_id", end);
}

}  // namespace

RandomModel::RandomModel(const ModelShape& shape, TensorType type, std::uint64_t seed) : seed_(seed) {
  add("token_embd.weight", shape.width, shape.vocabulary, type);
  if (!shape.tied) add("output.weight", shape.width, shape.vocabulary, type);
  add("output_norm.weight", shape.width, 1, TensorType::f32);
  for (std::int64_t i = 0; i < shape.layers; ++i) add_layer(shape, i, type);
  write_header(shape, type);
  bytes_ = header_.size() + data_bytes_;
}

void RandomModel::add(std::string name, std::int64_t depth, std::int64_t rows, TensorType type,
                      std::int64_t count) {
  const runtime::TensorTypeInfo& info = runtime::tensor_type_info(type);
  if (depth % info.block_elements != 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("tensor '{}' has rows of {}; of type {} a row must be a multiple of {}", name,
                            depth, info.name, info.block_elements));
  }
  const auto bytes = static_cast<std::uint64_t>(runtime::row_bytes(type, depth) * rows * count);
  matrices_.push_back({std::move(name), depth, rows * count, count, type, data_bytes_});
  data_bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

void RandomModel::add_layer(const ModelShape& shape, std::int64_t index, TensorType type) {
  const auto named = [index](const char* name) { return fmt::format("blk.{}.{}", index, name); };
  const std::int64_t keys = shape.heads_kv * shape.d_head;
  const std::int64_t queries = shape.heads * shape.d_head;
  const auto add_vector = [&](const char* name, std::int64_t n) { add(named(name), n, 1, TensorType::f32); };
  const bool oss = shape.architecture == "gpt-oss";
  add_vector("attn_norm.weight", shape.width);
  add_vector(oss ? "post_attention_norm.weight" : "ffn_norm.weight", shape.width);
  const bool gemma = shape.architecture == "gemma3";
  if (gemma) {
    add_vector("post_attention_norm.weight", shape.width);
    add_vector("post_ffw_norm.weight", shape.width);
  }
  if (gemma || shape.architecture.starts_with("qwen3")) {
    add_vector("attn_q_norm.weight", shape.d_head);
    add_vector("attn_k_norm.weight", shape.d_head);
  }
  if (shape.architecture == "qwen2" || oss) {
    add_vector("attn_q.bias", queries);
    add_vector("attn_k.bias", keys);
    add_vector("attn_v.bias", keys);
  }
  if (oss) {
    add_vector("attn_output.bias", shape.width);
    add_vector("attn_sinks.weight", shape.heads);
    add_vector("ffn_gate_inp.bias", shape.experts);
    add(named("ffn_gate_exps.bias"), shape.feed_forward, shape.experts, TensorType::f32);
    add(named("ffn_up_exps.bias"), shape.feed_forward, shape.experts, TensorType::f32);
    add(named("ffn_down_exps.bias"), shape.width, shape.experts, TensorType::f32);
  }
  add(named("attn_q.weight"), shape.width, queries, type);
  add(named("attn_k.weight"), shape.width, keys, type);
  add(named("attn_v.weight"), shape.width, keys, type);
  add(named("attn_output.weight"), queries, shape.width, type);
  if (shape.experts > 0) {
    add(named("ffn_gate_inp.weight"), shape.width, shape.experts, TensorType::f32);
    add(named("ffn_gate_exps.weight"), shape.width, shape.feed_forward, type, shape.experts);
    add(named("ffn_up_exps.weight"), shape.width, shape.feed_forward, type, shape.experts);
    add(named("ffn_down_exps.weight"), shape.feed_forward, shape.width, type, shape.experts);
    return;
  }
  add(named("ffn_gate.weight"), shape.width, shape.feed_forward, type);
  add(named("ffn_up.weight"), shape.width, shape.feed_forward, type);
  add(named("ffn_down.weight"), shape.feed_forward, shape.width, type);
}

void RandomModel::write_header(const ModelShape& shape, TensorType type) {
  constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
  constexpr float kEpsilon = 1e-6F;
  const auto key = [&](const char* name) { return fmt::format("{}.{}", shape.architecture, name); };
  HeaderWriter metadata;
  metadata.entry("general.architecture", shape.architecture);
  metadata.entry("general.name", fmt::format("{} with random weights", shape.name));
  metadata.entry("general.alignment", static_cast<std::int64_t>(kAlignment));
  metadata.entry("general.file_type", kFileTypes[static_cast<std::size_t>(type)]);
  write_tokenizer(shape.vocabulary, metadata);
  metadata.entry(key("vocab_size"), shape.vocabulary);
  metadata.entry(key("context_length"), shape.context);
  metadata.entry(key("embedding_length"), shape.width);
  metadata.entry(key("block_count"), shape.layers);
  metadata.entry(key("feed_forward_length"), shape.feed_forward);
  metadata.entry(key("attention.head_count"), shape.heads);
  metadata.entry(key("attention.head_count_kv"), shape.heads_kv);
  metadata.entry(key("attention.key_length"), shape.d_head);
  metadata.entry(key("attention.value_length"), shape.d_head);
  metadata.entry(key("attention.layer_norm_rms_epsilon"), kEpsilon);
  metadata.entry(key("rope.freq_base"), static_cast<float>(shape.rope_base));
  if (shape.experts > 0) {
    metadata.entry(key("expert_count"), shape.experts);
    metadata.entry(key("expert_used_count"), shape.experts_used);
    metadata.entry(key("expert_feed_forward_length"), shape.feed_forward);
  }
  if (shape.window > 0) metadata.entry(key("attention.sliding_window"), shape.window);
  HeaderWriter header;
  header.number<std::uint32_t>(kMagic);
  header.number<std::uint32_t>(3);
  header.number<std::uint64_t>(matrices_.size());
  header.number<std::uint64_t>(metadata.entries());
  header.append(metadata.take());
  for (const Matrix& matrix : matrices_) {
    header.text(matrix.name);
    const bool vector = matrix.rows == 1;
    const bool several = matrix.count > 1;
    header.number<std::uint32_t>(vector ? 1 : several ? 3 : 2);
    header.number<std::uint64_t>(static_cast<std::uint64_t>(matrix.depth));
    if (!vector) header.number<std::uint64_t>(static_cast<std::uint64_t>(matrix.rows / matrix.count));
    if (several) header.number<std::uint64_t>(static_cast<std::uint64_t>(matrix.count));
    header.number<std::uint32_t>(runtime::tensor_type_info(matrix.type).ggml_id);
    header.number<std::uint64_t>(matrix.offset);
  }
  header.pad();
  header_ = header.take();
}

void RandomModel::write(std::span<std::byte> out, int threads) const {
  std::memcpy(out.data(), header_.data(), header_.size());
  std::byte* const data = out.data() + header_.size();
  for (std::size_t m = 0; m < matrices_.size(); ++m) {
    const Matrix& matrix = matrices_[m];
    const std::int64_t row = runtime::row_bytes(matrix.type, matrix.depth);
    std::byte* const begin = data + matrix.offset;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (std::int64_t r = 0; r < matrix.rows; ++r) {
      Random seeds((seed_ << 32) + m);
      Random random(seeds.next() ^ static_cast<std::uint64_t>(r));
      if (matrix.rows == 1) {
        random_vector(matrix.name.ends_with(".bias"), matrix.depth, random, begin);
      } else {
        random_row(matrix.type, matrix.depth, random, begin + r * row);
      }
    }
    // What aligns the next matrix is zero.
    const std::uint64_t end =
        matrix.offset + static_cast<std::uint64_t>(row) * static_cast<std::uint64_t>(matrix.rows);
    const std::uint64_t next = m + 1 < matrices_.size() ? matrices_[m + 1].offset : data_bytes_;
    std::memset(data + end, 0, next - end);
  }
}

std::shared_ptr<const runtime::GgufFile> in_memory(const RandomModel& model, const std::string& name,
                                                   int threads) {
  struct Owned {
    runtime::AlignedBuffer buffer;
    runtime::GgufFile file;
  };
  runtime::AlignedBuffer buffer(model.bytes());
  const std::span<std::byte> bytes(buffer.data(), buffer.size());
  model.write(bytes, threads);
  auto owned = std::make_shared<Owned>(Owned{std::move(buffer), runtime::GgufFile::parse(bytes, name)});
  return {owned, &owned->file};
}

}  // namespace headwater::bench
