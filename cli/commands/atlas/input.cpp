#include "cli/commands/atlas/input.hpp"

#include <fmt/format.h>

#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string_view>

#include "cli/support/failure.hpp"
#include "cli/support/numbers.hpp"
#include "cli/support/safetensors.hpp"
#include "cli/support/text.hpp"
#include "headwater/detail/option_table.hpp"
#include "headwater/options.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cli {
namespace {

constexpr std::string_view kFormat = "headwater-attend-1";
constexpr std::uint64_t kMostHeads = 65536;
constexpr std::uint64_t kMostTokens = static_cast<std::uint64_t>(kMaxCount);

std::size_t index(std::int64_t value) { return static_cast<std::size_t>(value); }

/// One tensor of the file; elements may stand at any address.
class Elements {
 public:
  Elements(const runtime::MappedFile& file, const TensorInfo& tensor)
      : data_(file.bytes().data() + tensor.begin), type_(tensor.type) {}
  [[nodiscard]] std::int32_t integer(std::uint64_t i) const { return load<std::int32_t>(i); }
  [[nodiscard]] float real(std::uint64_t i) const {
    if (type_ == TensorType::f32) return load<float>(i);
    constexpr int kHalf = 16;  // BF16 is the upper half of an F32
    return std::bit_cast<float>(static_cast<std::uint32_t>(load<std::uint16_t>(i)) << kHalf);
  }

 private:
  template <typename T>
  [[nodiscard]] T load(std::uint64_t i) const {
    T value;
    std::memcpy(&value, data_ + i * sizeof(T), sizeof(T));
    return value;
  }
  const std::byte* data_;
  TensorType type_;
};

class Reader {
 public:
  Reader(const runtime::MappedFile& file, const std::vector<std::int64_t>& heads)
      : file_(file), header_(parse_safetensors(file.bytes())), wanted_(heads) {}
  AtlasTrace read();

 private:
  [[nodiscard]] const TensorInfo& tensor(std::string_view name, std::initializer_list<TensorType> types,
                                         std::size_t dimensions, std::string_view shape) const;
  [[nodiscard]] std::int64_t number(std::string_view key) const;
  void read_metadata();
  void read_scores();
  void read_chunks();
  void choose_heads();
  void read_sets();
  void read_set(std::int64_t chunk, std::int64_t head, const Elements& memory, const Elements& sums);
  void read_shape_of_blocks();
  void read_rows();
  void read_block_sets();
  void read_block_set(std::int64_t block, std::int64_t head, std::int64_t chunk_begin, const Elements& sets);

  const runtime::MappedFile& file_;
  SafetensorsHeader header_;
  const std::vector<std::int64_t>& wanted_;
  EffectiveOptions blocks_;                 // of rules `blocks` and `sketches`
  std::vector<std::int64_t> block_of_row_;  // its number in the file, or -1
  AtlasTrace trace_;
};

std::string type_names(std::initializer_list<TensorType> types) {
  std::string names;
  for (const TensorType type : types) {
    names += fmt::format("{}{}", names.empty() ? "" : " or ", tensor_type_info(type).name);
  }
  return names;
}

const TensorInfo& Reader::tensor(std::string_view name, std::initializer_list<TensorType> types,
                                 std::size_t dimensions, std::string_view shape) const {
  const auto it = header_.tensors.find(name);
  if (it == header_.tensors.end()) {
    const bool trace =
        name == "memory" || name == "colsum_inter" || name == "query_blocks" || name == "block_sets";
    throw Failure(fmt::format("has no tensor '{}'; atlas needs what `headwater attend` writes{}", name,
                              trace ? " without --no-trace" : ""));
  }
  const TensorInfo& found = it->second;
  bool allowed = false;
  for (const TensorType type : types) allowed |= found.type == type;
  if (!allowed) {
    throw Failure(fmt::format("tensor '{}': dtype {} is not allowed; use {}", name,
                              tensor_type_info(found.type).name, type_names(types)));
  }
  if (found.shape.size() != dimensions) {
    throw Failure(fmt::format("tensor '{}': shape {} has {} dimensions; it must be {}", name,
                              shape_text(found.shape), found.shape.size(), shape));
  }
  return found;
}

std::int64_t Reader::number(std::string_view key) const {
  const auto it = header_.metadata.find(key);
  if (it == header_.metadata.end()) {
    throw Failure(fmt::format("metadata has no '{}'; atlas needs what `headwater attend` writes", key));
  }
  try {
    return parse_integer(key, it->second, 0, kMaxCount);
  } catch (const Failure& failure) {
    throw Failure(fmt::format("metadata: {}", failure.what()));
  }
}

void Reader::read_metadata() {
  const auto format = header_.metadata.find("format");
  if (format == header_.metadata.end() || format->second != kFormat) {
    throw Failure(
        fmt::format("is not written by `headwater attend`: metadata 'format' is {}; allowed is '{}'",
                    format == header_.metadata.end() ? "missing" : in_quotes(format->second), kFormat));
  }
  trace_.local = number("local");
  const auto select = header_.metadata.find("select");
  if (select != header_.metadata.end()) {
    const bool sketches = select->second == "sketches";
    if (!sketches && select->second != "blocks" && select->second != "window") {
      throw Failure(fmt::format("metadata: select is {}; allowed are blocks, sketches and window",
                                in_quotes(select->second)));
    }
    blocks_.select = sketches ? Select::sketches : Select::blocks;
    blocks_.local = trace_.local;
    blocks_.key_block = select->second == "blocks" ? number("key_block") : 1;
    if (blocks_.key_block < 1) throw Failure("metadata: key_block is 0; allowed are 1 and more");
  }
  std::vector<const char*> keys{"version", "engine", "isa"};
  const auto add = [&](const auto& option) { keys.push_back(option.name); };
  detail::for_each_option(detail::Part::plan, add);
  keys.insert(keys.end(), {"scale", "softcap", "select"});
  detail::for_each_option(detail::Part::size, add);
  detail::for_each_option(detail::Part::exact, add);
  keys.push_back("dense_layers");
  for (const char* const key : keys) {
    const auto it = header_.metadata.find(key);
    if (it != header_.metadata.end()) trace_.facts.emplace_back(key, one_line(it->second, kQuotedLimit));
  }
}

void Reader::choose_heads() {
  if (wanted_.empty()) {
    trace_.head_numbers.resize(index(trace_.heads_in_file));
    std::iota(trace_.head_numbers.begin(), trace_.head_numbers.end(), 0);
    return;
  }
  if (wanted_.back() >= trace_.heads_in_file) {
    throw Failure(fmt::format("--head: {} is not a head of the file; allowed are 0 to {}", wanted_.back(),
                              trace_.heads_in_file - 1));
  }
  trace_.head_numbers = wanted_;
}

void Reader::read_scores() {
  const TensorInfo& info = tensor("scores", {TensorType::bf16, TensorType::f32}, 2, "[Hq, n]");
  if (info.shape[0] < 1 || info.shape[0] > kMostHeads || info.shape[1] < 1 || info.shape[1] > kMostTokens) {
    throw Failure(fmt::format("tensor 'scores': shape is {}; allowed are [1 to {}, 1 to {}]",
                              shape_text(info.shape), kMostHeads, kMostTokens));
  }
  trace_.heads_in_file = static_cast<std::int64_t>(info.shape[0]);
  trace_.n = static_cast<std::int64_t>(info.shape[1]);
  trace_.narrow_scores = info.type == TensorType::bf16;
  choose_heads();
  const Elements elements(file_, info);
  trace_.scores.reserve(index(trace_.heads() * trace_.n));
  for (const std::int64_t head : trace_.head_numbers) {
    for (std::int64_t t = 0; t < trace_.n; ++t) {
      std::int64_t at = head * trace_.n + t;
      if (HEADWATER_SABOTAGE("atlas.input.score_in_16_bits")) at &= 0xFFFF;
      const float score = elements.real(static_cast<std::uint64_t>(at));
      if (!std::isfinite(score) || score < 0.0F) {
        throw Failure(
            fmt::format("tensor 'scores': the score of head {}, token {} is {}; allowed are finite "
                        "numbers of 0 or more",
                        head, t, score));
      }
      trace_.scores.push_back(score);
    }
  }
}

void Reader::read_chunks() {
  const TensorInfo& info = tensor("chunk_start", {TensorType::i32}, 1, "[C + 1]");
  const std::uint64_t count = info.shape[0];
  if (count < 2 || count - 1 > static_cast<std::uint64_t>(trace_.n)) {
    throw Failure(fmt::format("tensor 'chunk_start': shape is {}; allowed are 2 to n + 1 = {} entries",
                              shape_text(info.shape), trace_.n + 1));
  }
  const Elements elements(file_, info);
  for (std::uint64_t c = 0; c < count; ++c) {
    const std::int64_t start = elements.integer(c);
    const bool right = c == 0 ? start == 0 : start > trace_.chunk_start.back();
    if (!right || start > trace_.n || (c + 1 == count && start != trace_.n)) {
      throw Failure(fmt::format("tensor 'chunk_start': entry {} is {}; entries must ascend from 0 to n = {}",
                                c, start, trace_.n));
    }
    trace_.chunk_start.push_back(start);
  }
}

void Reader::read_set(std::int64_t chunk, std::int64_t head, const Elements& memory, const Elements& sums) {
  auto row = static_cast<std::uint64_t>((chunk * trace_.heads_in_file + head) * trace_.memory);
  if (HEADWATER_SABOTAGE("atlas.input.sets_of_32_heads")) row -= head / 32 * 32 * trace_.memory;
  std::int32_t before = -1;
  bool ended = false;
  for (std::int64_t e = 0; e < trace_.memory; ++e) {
    const auto at = row + static_cast<std::uint64_t>(e);
    const std::int32_t position = memory.integer(at);
    const auto fail = [&](std::string_view tensor, const std::string& value, const std::string& allowed) {
      throw Failure(fmt::format("tensor '{}': entry {} of chunk {}, head {} is {}; {}", tensor, e, chunk,
                                head, value, allowed));
    };
    if (position == -1) {
      ended = true;
      continue;
    }
    if (ended || position <= before || position >= trace_.begin(chunk)) {
      fail("memory", fmt::format("{}", position),
           fmt::format("entries must ascend below the chunk's start {}, then be -1", trace_.begin(chunk)));
    }
    const float sum = sums.real(at);
    if (!std::isfinite(sum) || sum < 0.0F) {
      fail("colsum_inter", fmt::format("{}", sum), "allowed are finite numbers of 0 or more");
    }
    before = position;
    trace_.positions.push_back(position);
    trace_.colsum_inter.push_back(sum);
  }
  trace_.set_start.push_back(static_cast<std::int64_t>(trace_.positions.size()));
}

void Reader::read_sets() {
  const TensorInfo& memory = tensor("memory", {TensorType::i32}, 3, "[C, Hq, M]");
  const TensorInfo& sums = tensor("colsum_inter", {TensorType::f32}, 3, "[C, Hq, M]");
  if (memory.shape[0] != static_cast<std::uint64_t>(trace_.chunks()) ||
      memory.shape[1] != static_cast<std::uint64_t>(trace_.heads_in_file) || memory.shape[2] > kMostTokens) {
    throw Failure(fmt::format("tensor 'memory': shape is {}; it must be [C, Hq, M] = [{}, {}, 0 to {}]",
                              shape_text(memory.shape), trace_.chunks(), trace_.heads_in_file, kMostTokens));
  }
  if (sums.shape != memory.shape) {
    throw Failure(fmt::format("tensor 'colsum_inter': shape is {}; it must be that of 'memory', {}",
                              shape_text(sums.shape), shape_text(memory.shape)));
  }
  trace_.memory = static_cast<std::int64_t>(memory.shape[2]);
  const Elements positions(file_, memory);
  const Elements weights(file_, sums);
  trace_.set_start.assign(1, 0);
  for (std::int64_t c = 0; c < trace_.chunks(); ++c) {
    for (const std::int64_t head : trace_.head_numbers) read_set(c, head, positions, weights);
  }
}

/// Rules `blocks` and `sketches` have no scores; their shape tells the number of tokens.
void Reader::read_shape_of_blocks() {
  const TensorInfo& scores = tensor("scores", {TensorType::bf16, TensorType::f32}, 2, "[Hq, n]");
  const TensorInfo& sets = tensor("block_sets", {TensorType::i32}, 3, "[B, Hkv, M]");
  if (scores.shape[0] < 1 || scores.shape[0] > kMostHeads || scores.shape[1] < 1 ||
      scores.shape[1] > kMostTokens) {
    throw Failure(fmt::format("tensor 'scores': shape is {}; allowed are [1 to {}, 1 to {}]",
                              shape_text(scores.shape), kMostHeads, kMostTokens));
  }
  if (sets.shape[1] < 1 || scores.shape[0] % sets.shape[1] != 0 || sets.shape[2] > kMostTokens) {
    throw Failure(
        fmt::format("tensor 'block_sets': shape is {}; allowed are [B, a divisor of Hq = {}, 0 to {}]",
                    shape_text(sets.shape), scores.shape[0], kMostTokens));
  }
  trace_.n = static_cast<std::int64_t>(scores.shape[1]);
  trace_.heads_in_file = static_cast<std::int64_t>(sets.shape[1]);
  trace_.memory = static_cast<std::int64_t>(sets.shape[2]);
  choose_heads();
}

/// Cuts the chunks into query blocks: those chunks that have some.
void Reader::read_rows() {
  const TensorInfo& info = tensor("query_blocks", {TensorType::i32}, 2, "[B, 2]");
  const TensorInfo& sets = tensor("block_sets", {TensorType::i32}, 3, "[B, Hkv, M]");
  if (info.shape[1] != 2 || info.shape[0] != sets.shape[0]) {
    throw Failure(fmt::format("tensor 'query_blocks': shape is {}; it must be [B, 2] = [{}, 2]",
                              shape_text(info.shape), sets.shape[0]));
  }
  const Elements elements(file_, info);
  const auto count = static_cast<std::int64_t>(info.shape[0]);
  const std::vector<std::int64_t> chunks = std::move(trace_.chunk_start);
  trace_.chunk_start = {0};
  std::int64_t block = 0;
  const auto edge = [&](std::int64_t which) {
    return block < count ? elements.integer(static_cast<std::uint64_t>(2 * block + which)) : -1;
  };
  const auto add = [&](std::int64_t begin, std::int64_t end, std::int64_t number) {
    trace_.rows.push_back({begin, blocks_.local_begin(begin), number < 0});
    trace_.chunk_start.push_back(end);
    block_of_row_.push_back(number);
  };
  for (std::size_t c = 0; c + 1 < chunks.size(); ++c) {
    std::int64_t at = chunks[c];
    while (at < chunks[c + 1] && edge(0) == at) {
      if (edge(1) <= at || edge(1) > chunks[c + 1]) break;
      at = edge(1);
      add(chunks[c], at, block++);
    }
    if (at == chunks[c]) add(at, chunks[c + 1], -1);
    if (at > chunks[c] && at < chunks[c + 1]) break;
  }
  if (block == count && trace_.chunk_start.back() == trace_.n) return;
  throw Failure(
      fmt::format("tensor 'query_blocks': entry {} is {} to {}; a chunk is cut without gaps, or not at all",
                  block, edge(0), edge(1)));
}

void Reader::read_block_set(std::int64_t block, std::int64_t head, std::int64_t chunk_begin,
                            const Elements& sets) {
  const auto row = static_cast<std::uint64_t>((block * trace_.heads_in_file + head) * trace_.memory);
  std::int32_t before = -1;
  bool ended = false;
  for (std::int64_t e = 0; e < trace_.memory; ++e) {
    const std::int32_t position = sets.integer(row + static_cast<std::uint64_t>(e));
    if (position == -1) {
      ended = true;
      continue;
    }
    if (ended || position <= before || position >= chunk_begin) {
      throw Failure(fmt::format(
          "tensor 'block_sets': entry {} of query block {}, head {} is {}; entries must ascend below the "
          "chunk's start {}, then be -1",
          e, block, head, position, chunk_begin));
    }
    before = position;
    trace_.positions.push_back(position);
  }
}

void Reader::read_block_sets() {
  const Elements sets(file_, tensor("block_sets", {TensorType::i32}, 3, "[B, Hkv, M]"));
  trace_.set_start.assign(1, 0);
  for (std::size_t row = 0; row < trace_.rows.size(); ++row) {
    for (const std::int64_t head : trace_.head_numbers) {
      if (block_of_row_[row] >= 0) {
        read_block_set(block_of_row_[row], head, trace_.rows[row].chunk_begin, sets);
      }
      trace_.set_start.push_back(static_cast<std::int64_t>(trace_.positions.size()));
    }
  }
}

AtlasTrace Reader::read() {
  read_metadata();
  if (blocks_.select != Select::h2o) {
    read_shape_of_blocks();
    read_chunks();
    read_rows();
    read_block_sets();
    return std::move(trace_);
  }
  read_scores();
  read_chunks();
  read_sets();
  return std::move(trace_);
}

}  // namespace

std::string AtlasTrace::head_name(std::int64_t head) const {
  const std::int64_t number = head_numbers[static_cast<std::size_t>(head)];
  return heads_in_layer == 0 ? fmt::format("{}", number)
                             : fmt::format("{}.{}", number / heads_in_layer, number % heads_in_layer);
}

AtlasTrace read_atlas_trace(const runtime::MappedFile& file, const std::vector<std::int64_t>& heads) {
  try {
    return Reader(file, heads).read();
  } catch (const Failure& failure) {
    throw Failure(failure.code(), fmt::format("{}: {}", in_quotes(file.path()), failure.what()));
  }
}

}  // namespace headwater::cli
