#include "conformance/attend_files.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <functional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "conformance/replay.hpp"
#include "conformance/rows_8bit.hpp"
#include "conformance/safetensors.hpp"
#include "headwater/engine.hpp"
#include "headwater/error.hpp"

namespace headwater::conformance {
namespace {

constexpr const char* kRowTypes = "F32,F16,BF16";
constexpr std::int64_t kMostExtent = 65536;  // of heads and widths, as Shape has it
constexpr std::int64_t kMostTokens = 2147483647;

DType dtype_of(const FileTensor& tensor) {
  return tensor.dtype == "F32" ? DType::f32 : tensor.dtype == "F16" ? DType::f16 : DType::bf16;
}

template <class Number>
Number parse_number(const SafetensorsFile& file, const std::string& key) {
  const std::string& text = file.metadata(key);
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    file.refuse(fmt::format("__metadata__ {} is '{}'; allowed: a number", key, text));
  }
  return value;
}

void require_shape(const SafetensorsFile& file, const std::string& name, const FileTensor& tensor,
                   const std::vector<std::int64_t>& wanted) {
  if (tensor.shape == wanted) return;
  file.refuse(fmt::format("tensor {} has shape [{}]; allowed: [{}]", name, fmt::join(tensor.shape, ", "),
                          fmt::join(wanted, ", ")));
}

Tensor read_rows(const SafetensorsFile& file, const std::string& name) {
  const FileTensor& from = file.tensor(name, 3, kRowTypes);
  if (from.shape[0] < 1 || from.shape[0] > kMostTokens) {
    file.refuse(fmt::format("tensor {} has {} tokens; allowed: 1 .. {}", name, from.shape[0], kMostTokens));
  }
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    if (from.shape[i] < 1 || from.shape[i] > kMostExtent) {
      file.refuse(fmt::format("tensor {} has extent {} in dimension {}; allowed: 1 .. {}", name,
                              from.shape[i], i, kMostExtent));
    }
  }
  Tensor tensor;
  tensor.type = dtype_of(from);
  tensor.n = from.shape[0];
  tensor.heads = from.shape[1];
  tensor.width = from.shape[2];
  tensor.values = read_floats(from);
  return tensor;
}

std::vector<float> read_per_head(const SafetensorsFile& file, const std::string& name, std::int64_t heads) {
  if (!file.has(name)) return {};
  const FileTensor& tensor = file.tensor(name, 1, "F32");
  require_shape(file, name, tensor, {heads});
  return read_floats(tensor);
}

void read_input(const SafetensorsFile& file, Problem& problem) {
  LayerInput layer{read_rows(file, "q"), read_rows(file, "k"), read_rows(file, "v")};
  Shape& shape = problem.shape;
  shape.n_head = layer.q.heads;
  shape.n_head_kv = layer.k.heads;
  shape.d_head = layer.q.width;
  shape.d_value = layer.v.width;
  shape.capacity = layer.q.n;
  shape.kv_type = layer.k.type;
  if (layer.k.n != layer.q.n || layer.v.n != layer.q.n || layer.k.width != layer.q.width ||
      layer.v.heads != layer.k.heads || shape.n_head % shape.n_head_kv != 0) {
    file.refuse("q [n, Hq, d], k [n, Hkv, d] and v [n, Hkv, dv] do not fit each other");
  }
  problem.q_type = layer.q.type;
  problem.k_type = layer.k.type;
  problem.v_type = layer.v.type;
  problem.options.sinks = read_per_head(file, "sinks", shape.n_head);
  problem.options.alibi = read_per_head(file, "alibi", shape.n_head);
  problem.layers.push_back(std::move(layer));
}

// SEL-1, SKE-1. Files of rule h2o do not name their rule.
void read_rule(const SafetensorsFile& file, Options& options) {
  if (!file.has_metadata("select")) return;
  const std::string& select = file.metadata("select");
  if (select == "h2o") return;
  if (select == "sketches") {
    options.select = Select::sketches;
    options.query_block = parse_number<std::int64_t>(file, "query_block");
    options.least_weight = parse_number<double>(file, "least_weight");
    if (options.query_block < 1 || options.query_block > options.chunk ||
        !(options.least_weight >= 0.0 && options.least_weight < 1.0)) {
      file.refuse("__metadata__ query_block or least_weight is out of range (SKE-1)");
    }
    return;
  }
  if (select != "blocks" && select != "window") {
    file.refuse(fmt::format("__metadata__ select is '{}'; allowed: h2o, blocks, sketches, window", select));
  }
  options.select = Select::blocks;
  if (select == "window") {  // key blocks of one key and no votes
    options.key_block = options.refine = 1;
    options.query_block = options.pool = options.chunk;
  } else {
    options.key_block = parse_number<std::int64_t>(file, "key_block");
    options.query_block = parse_number<std::int64_t>(file, "query_block");
    options.pool = parse_number<std::int64_t>(file, "pool");
    options.refine = parse_number<std::int64_t>(file, "refine");
  }
  constexpr std::int64_t kMostKeys = 256;
  constexpr std::int64_t kMostRefine = 16;
  const auto within = [](std::int64_t value, std::int64_t most) { return value >= 1 && value <= most; };
  if (!within(options.key_block, std::min(kMostKeys, options.chunk)) ||
      !within(options.query_block, options.chunk) || !within(options.pool, options.query_block) ||
      !within(options.refine, kMostRefine) || options.query_block % options.pool != 0 ||
      options.heavy % options.key_block != 0) {
    file.refuse("__metadata__ key_block, query_block, pool or refine is out of range (SEL-1)");
  }
}

void read_options(const SafetensorsFile& file, AttendRun& run) {
  Options& options = run.problem.options;
  options.batch = parse_number<std::int64_t>(file, "batch");
  options.chunk = parse_number<std::int64_t>(file, "chunk");
  options.local = parse_number<std::int64_t>(file, "local");
  options.heavy = parse_number<std::int64_t>(file, "heavy");
  options.clamp = false;  // they are effective already
  options.scale = parse_number<double>(file, "scale");
  options.softcap = parse_number<double>(file, "softcap");
  const std::string& type = file.metadata("score_type");
  if (type != "bf16" && type != "f32") {
    file.refuse(fmt::format("__metadata__ score_type is '{}'; allowed: bf16, f32", type));
  }
  options.score_type = type == "bf16" ? ScoreType::bf16 : ScoreType::f32;
  for (const std::int64_t value : {options.batch, options.chunk, options.local + 1, options.heavy + 1}) {
    if (value < 1 || value > kMostTokens)
      file.refuse("__metadata__ batch, chunk, local or heavy is out of range");
  }
  if (!std::isfinite(*options.scale) || !std::isfinite(options.softcap) || options.softcap < 0) {
    file.refuse("__metadata__ scale or softcap is not finite");
  }
  read_rule(file, options);
  // CFG-5. A file names what is not off; it holds one layer, which is layer 0.
  if (file.has_metadata("pinned")) options.pinned = parse_number<std::int64_t>(file, "pinned");
  if (file.has_metadata("dense_below")) {
    options.dense_below = parse_number<std::int64_t>(file, "dense_below");
  }
  if (file.has_metadata("dense_layers")) {
    options.dense_layers = {parse_number<std::int64_t>(file, "dense_layers")};
  }
  if (options.pinned < 0 || options.pinned > options.heavy ||
      (options.select == Select::blocks && options.pinned % options.key_block != 0)) {
    file.refuse("__metadata__ pinned is out of range (CFG-5)");
  }
  if (options.dense_below < 0 || options.dense_below > kMostTokens ||
      (!options.dense_layers.empty() && options.dense_layers.front() != 0)) {
    file.refuse("__metadata__ dense_below or dense_layers is out of range (CFG-5)");
  }
  if (file.has_metadata("kv_bits")) {  // STATE-13
    options.kv_bits = parse_number<std::int64_t>(file, "kv_bits");
    const Shape& shape = run.problem.shape;
    if (options.kv_bits != 8 || shape.d_head % kGroupElements != 0 || shape.d_value % kGroupElements != 0)
      file.refuse("__metadata__ kv_bits is not 8, or d or dv is no multiple of 32 (STATE-13)");
    run.problem = restored(std::move(run.problem));
  }
  run.options = expected_options(run.problem.shape, run.problem.options);
  run.engine = file.metadata("engine");
  for (const Engine* engine : engines()) {
    if (engine->name() != run.engine) continue;
    run.arithmetic = arithmetic_of(*engine, run.problem.q_type, run.problem.shape.kv_type);
    run.votes = vote_arithmetic_of(*engine, run.problem.q_type, run.problem.shape.kv_type);
  }
}

// The mode, the set and the column sums of one chunk.
ChunkTrace read_chunk(const SafetensorsFile& file, const AttendRun& run, std::int64_t begin, std::int64_t end,
                      const std::vector<float>& intra, const std::int32_t* memory, const float* inter) {
  const std::int64_t heads = run.problem.shape.n_head;
  const std::int64_t tokens = run.problem.shape.capacity;
  const std::int64_t width = run.options.memory();
  ChunkTrace chunk;
  const auto sums_of = [&](std::int64_t h) { return intra.data() + h * tokens; };
  const bool any_memory = std::any_of(memory, memory + heads * width, [](std::int32_t p) { return p != -1; });
  bool any_sum = false;
  for (std::int64_t h = 0; h < heads; ++h) {
    any_sum = any_sum || std::any_of(sums_of(h) + begin, sums_of(h) + end, [](float x) { return x != 0.0f; });
  }
  const bool sparse = run.options.sparse && (begin == 0 ? any_sum : any_memory);
  chunk.chunk = {begin, end, sparse ? ChunkMode::sparse : ChunkMode::dense};
  if (!sparse) {
    if (any_sum) file.refuse(fmt::format("chunk at {}: no memory, but column sums other than 0", begin));
    if (std::any_of(inter, inter + heads * width, [](float x) { return x != 0.0f; }) || any_memory) {
      file.refuse(
          fmt::format("chunk at {}: a memory or its column sums where a dense chunk has none", begin));
    }
    return chunk;
  }
  if (end - begin > run.options.chunk) {
    file.refuse(
        fmt::format("chunk at {} has {} tokens; allowed: at most {}", begin, end - begin, run.options.chunk));
  }
  while (chunk.memory_count < width && memory[chunk.memory_count] != -1) ++chunk.memory_count;
  for (std::int64_t h = 0; h < heads; ++h) {
    chunk.colsum_intra.insert(chunk.colsum_intra.end(), sums_of(h) + begin, sums_of(h) + end);
    for (std::int64_t i = 0; i < width; ++i) {
      const std::int32_t position = memory[h * width + i];
      const bool valid = i < chunk.memory_count;
      if (valid ? (position < 0 || position >= begin) : (position != -1 || inter[h * width + i] != 0.0f)) {
        file.refuse(
            fmt::format("chunk at {} head {}: entry {} of memory is {} or has a column sum after the set",
                        begin, h, i, position));
      }
      if (!valid) continue;
      chunk.memory.push_back(position);
      chunk.colsum_inter.push_back(inter[h * width + i]);
    }
  }
  return chunk;
}

// The chunks of rules `blocks` and `sketches`, between `starts`.
void read_block_chunks(const SafetensorsFile& file, const std::vector<std::int32_t>& starts, AttendRun& run) {
  const EffectiveOptions& options = run.options;
  const std::int64_t heads_kv = run.problem.shape.n_head_kv;
  if (!file.has("query_blocks")) file.refuse("has no tensor query_blocks: run attend without --no-trace");
  const FileTensor& rows_tensor = file.tensor("query_blocks", 2, "I32");
  const std::int64_t count = rows_tensor.shape[0];
  require_shape(file, "query_blocks", rows_tensor, {count, 2});
  const FileTensor& sets_tensor = file.tensor("block_sets", 3, "I32");
  require_shape(file, "block_sets", sets_tensor, {count, heads_kv, options.memory()});
  const FileTensor& block_tensor = file.tensor("block_votes", 3, "F32");
  require_shape(file, "block_votes", block_tensor, {count, heads_kv, block_tensor.shape[2]});
  const FileTensor& token_tensor = file.tensor("token_votes", 3, "F32");
  require_shape(file, "token_votes", token_tensor, {count, heads_kv, token_tensor.shape[2]});
  const std::vector<std::int32_t> rows = read_integers(rows_tensor);
  const std::vector<std::int32_t> sets = read_integers(sets_tensor);
  const std::vector<float> block_votes = read_floats(block_tensor);
  const std::vector<float> token_votes = read_floats(token_tensor);

  // `valid` values of row `set` of a tensor; what follows them must be empty places.
  const auto take = [&](const char* name, const auto& from, std::int64_t width, std::int64_t set,
                        std::int64_t valid, const auto& is_empty, auto& to) {
    if (valid > width) {
      file.refuse(fmt::format("tensor {} has {} places; allowed: at least {}", name, width, valid));
    }
    const auto first = from.begin() + set * width;
    to.insert(to.end(), first, first + valid);
    if (!std::all_of(first + valid, first + width, is_empty)) {
      file.refuse(fmt::format("tensor {}: set {} has more than {} entries", name, set, valid));
    }
  };
  const auto no_position = [](std::int32_t p) { return p == -1; };
  const auto no_vote = [](float vote) { return std::isnan(vote); };

  std::int64_t next = 0;  // query block
  for (std::size_t c = 0; c + 1 < starts.size(); ++c) {
    ChunkTrace& chunk = run.chunks.emplace_back();
    const std::int64_t begin = starts[c];
    const std::int64_t end = starts[c + 1];
    const bool sparse = next < count && rows[static_cast<std::size_t>(2 * next)] == begin;
    chunk.chunk = {begin, end, sparse ? ChunkMode::sparse : ChunkMode::dense};
    if (!sparse) continue;
    if (end - begin > options.chunk) {
      file.refuse(
          fmt::format("chunk at {} has {} tokens; allowed: at most {}", begin, end - begin, options.chunk));
    }
    chunk.query_block = options.query_block;
    chunk.query_blocks = options.query_blocks(end - begin);
    chunk.memory_count = options.memory_count(begin);
    chunk.candidate_blocks = options.candidate_blocks(begin);
    chunk.voted_tokens = options.voted_tokens(begin);
    if (chunk.query_blocks > count - next) file.refuse("tensor query_blocks ends inside a chunk");
    for (std::int64_t b = 0; b < chunk.query_blocks; ++b) {
      const std::int64_t first = begin + b * options.query_block;
      const auto at = static_cast<std::size_t>(2 * (next + b));
      if (rows[at] != first || rows[at + 1] != std::min(first + options.query_block, end)) {
        file.refuse(fmt::format("query block {} is [{}, {}); allowed: blocks of {} rows from {} on", next + b,
                                rows[at], rows[at + 1], options.query_block, begin));
      }
    }
    for (std::int64_t g = 0; g < heads_kv; ++g) {
      for (std::int64_t b = next; b < next + chunk.query_blocks; ++b) {
        const std::int64_t set = b * heads_kv + g;
        take("block_sets", sets, options.memory(), set, chunk.memory_count, no_position, chunk.memory);
        take("block_votes", block_votes, block_tensor.shape[2], set, chunk.candidate_blocks, no_vote,
             chunk.block_votes);
        take("token_votes", token_votes, token_tensor.shape[2], set, chunk.voted_tokens, no_vote,
             chunk.token_votes);
      }
    }
    for (const std::int32_t position : chunk.memory) {
      const bool none = position == -1 && options.select == Select::sketches;  // SKE-8
      if ((position < 0 && !none) || position >= begin) {
        file.refuse(
            fmt::format("chunk at {}: block_sets holds {}; allowed: 0 .. {}", begin, position, begin - 1));
      }
    }
    next += chunk.query_blocks;
  }
  if (next != count)
    file.refuse(fmt::format("tensor query_blocks has {} rows, the chunks have {}", count, next));
}

}  // namespace

AttendRun read_attend_run(const std::string& input, const std::string& output) {
  AttendRun run;
  const SafetensorsFile in(input);
  read_input(in, run.problem);
  const SafetensorsFile file(output);
  read_options(file, run);
  const Shape& shape = run.problem.shape;
  const std::int64_t n = shape.capacity;
  const std::int64_t heads = shape.n_head;
  const std::int64_t width = run.options.memory();

  const FileTensor& out = file.tensor("out", 3, "F32");
  require_shape(file, "out", out, {n, heads, shape.d_value});
  run.out = read_floats(out);
  const FileTensor& lse = file.tensor("lse", 2, "F32");
  require_shape(file, "lse", lse, {n, heads});
  run.lse = read_floats(lse);
  const FileTensor& scores =
      file.tensor("scores", 2, run.options.score_type == ScoreType::bf16 ? "BF16" : "F32");
  require_shape(file, "scores", scores, {heads, n});
  for (std::int64_t i = 0; i < scores.elements; ++i) {
    std::uint32_t bits = 0;
    const std::size_t size = run.options.score_type == ScoreType::bf16 ? 2 : 4;
    std::memcpy(&bits, scores.data + static_cast<std::size_t>(i) * size,
                size);  // little-endian, as the format is
    run.scores.push_back(bits);
  }
  const FileTensor& intra_tensor = file.tensor("colsum_intra", 2, "F32");
  require_shape(file, "colsum_intra", intra_tensor, {heads, n});
  const std::vector<float> intra = read_floats(intra_tensor);

  const std::vector<std::int32_t> starts = read_integers(file.tensor("chunk_start", 1, "I32"));
  if (starts.size() < 2 || starts.front() != 0 || starts.back() != n ||
      std::adjacent_find(starts.begin(), starts.end(), std::greater_equal<>()) != starts.end()) {
    file.refuse(fmt::format("tensor chunk_start does not ascend from 0 to {}", n));
  }
  const auto chunks = static_cast<std::int64_t>(starts.size()) - 1;
  if (run.options.select != Select::h2o) {
    if (std::any_of(intra.begin(), intra.end(), [](float x) { return x != 0.0f; })) {
      file.refuse("tensor colsum_intra is not 0 under rule blocks or sketches (SEL-9)");
    }
    read_block_chunks(file, starts, run);
    run.problem.steps = {Step::prefill(n)};  // only the number of tokens is used
    return run;
  }
  if (file.has("block_sets")) {
    file.refuse(
        "has sets of query blocks; allowed: those of a run whose __metadata__ select is blocks or window");
  }
  if (!file.has("memory")) file.refuse("has no tensor memory: run attend without --no-trace");
  const FileTensor& memory_tensor = file.tensor("memory", 3, "I32");
  require_shape(file, "memory", memory_tensor, {chunks, heads, width});
  const FileTensor& inter_tensor = file.tensor("colsum_inter", 3, "F32");
  require_shape(file, "colsum_inter", inter_tensor, {chunks, heads, width});
  const std::vector<std::int32_t> memory = read_integers(memory_tensor);
  const std::vector<float> inter = read_floats(inter_tensor);
  for (std::int64_t c = 0; c < chunks; ++c) {
    const auto at = static_cast<std::size_t>(c);
    run.chunks.push_back(read_chunk(file, run, starts[at], starts[at + 1], intra,
                                    memory.data() + c * heads * width, inter.data() + c * heads * width));
  }
  run.problem.steps = {Step::prefill(n)};  // only the number of tokens is used
  return run;
}

std::vector<float> read_attend_outputs(const std::string& path, const AttendRun& like) {
  const SafetensorsFile file(path);
  const FileTensor& out = file.tensor("out", 3, "F32");
  require_shape(file, "out", out,
                {like.problem.shape.capacity, like.problem.shape.n_head, like.problem.shape.d_value});
  return read_floats(out);
}

}  // namespace headwater::conformance
