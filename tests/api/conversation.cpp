#include "tests/api/conversation.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace headwater::api_test {

namespace {

constexpr std::int64_t kCapacity = 1100;

/// Rows in the type; values of BF16 are cut, which any rounding of exact values allows.
std::vector<unsigned char> in_type(const std::vector<float>& values, DType type) {
  std::vector<unsigned char> bytes;
  for (const float value : values) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const auto upper = static_cast<std::uint16_t>(word >> 16);
    if (type == DType::bf16) {
      append_bits(&upper, 1, bytes);
    } else {
      append_bits(&word, 1, bytes);
    }
  }
  return bytes;
}

}  // namespace

Conversation::Conversation(DType rows, bool blind)
    : shape{.n_layer = 2,
            .n_head = 6,
            .n_head_kv = 2,
            .d_head = 16,
            .d_value = 12,
            .capacity = kCapacity,
            .kv_type = rows},
      type(rows) {
  LayerInput input = random_input(shape, kCapacity, 7);
  if (blind) {
    // Products of queries above 0 with the first key are -infinity, never NaN.
    for (float& x : input.q) x = std::abs(x) + 0.5f;
    std::fill_n(input.k.begin(), shape.n_head_kv * shape.d_head, -std::numeric_limits<float>::infinity());
  }
  set_rows(input);
}

void Conversation::set_rows(const LayerInput& input) {
  q = in_type(input.q, type);
  k = in_type(input.k, type);
  v = in_type(input.v, type);
}

std::vector<Step> Conversation::steps() {
  return {Step::prefill(320, 330), Step::prefill(10), Step::decode(),    Step::decode(7),
          Step::prefill(133),      Step::decode(2),   Step::prefill(170)};
}

void Conversation::attend(Session& session, std::int64_t layer, float* out, const LseOutput& lse) const {
  const auto rows = [&](const std::vector<unsigned char>& tensor, std::int64_t heads, std::int64_t width) {
    const auto first = static_cast<std::size_t>(session.tokens() * heads * width) * dtype_size(type);
    return Rows::token_major(tensor.data() + first, type, heads, width);
  };
  session.attend(layer, rows(q, shape.n_head, shape.d_head), rows(k, shape.n_head_kv, shape.d_head),
                 rows(v, shape.n_head_kv, shape.d_value),
                 MutableRows::token_major(out, DType::f32, shape.n_head, shape.d_value), lse);
}

void Conversation::run(Session& session, const Step& step, std::vector<float>& out) const {
  const std::int64_t size = step.n * shape.n_head * shape.d_value;
  session.begin(step);
  for (std::int64_t layer = 0; layer < shape.n_layer; ++layer) {
    out.resize(out.size() + static_cast<std::size_t>(size));
    attend(session, layer, out.data() + out.size() - size);
  }
  session.end();
}

std::vector<unsigned char> Conversation::bits(const Engine& engine, const Options& options) const {
  const auto session = engine.open(shape, options);
  std::vector<unsigned char> all;
  session->set_observer([&](const ChunkRecord& record) {
    const std::int64_t rows = record.chunk.end - record.chunk.begin;
    const std::int64_t sets = record.query_blocks > 0 ? shape.n_head_kv * record.query_blocks : shape.n_head;
    for (std::int64_t s = 0; s < sets && record.memory_count > 0; ++s)
      append_bits(record.memory + s * record.memory_stride, record.memory_count, all);
    for (std::int64_t h = 0; h < shape.n_head; ++h) {
      append_bits(record.lse + h * record.row_stride, rows, all);
      if (record.colsum_intra) append_bits(record.colsum_intra + h * record.row_stride, rows, all);
      if (record.colsum_inter)
        append_bits(record.colsum_inter + h * record.memory_stride, record.memory_count, all);
    }
    const std::int64_t votes = shape.n_head_kv * record.query_blocks;
    if (record.block_votes) append_bits(record.block_votes, votes * record.candidate_blocks, all);
    if (record.token_votes) append_bits(record.token_votes, votes * record.voted_tokens, all);
  });
  std::vector<float> out;
  for (const Step& step : steps()) run(*session, step, out);
  append_bits(out.data(), std::ssize(out), all);
  Results contents;
  append_contents(*session, contents);
  append_bits(contents.scores.data(), std::ssize(contents.scores), all);
  append_bits(contents.memory.data(), std::ssize(contents.memory), all);
  return all;
}

Options conversation_options(Select select, int threads) {
  Options options;
  options.chunk = 160, options.batch = 320, options.local = 24, options.heavy = 40;
  options.select = select, options.threads = threads;
  return options;
}

}  // namespace headwater::api_test
