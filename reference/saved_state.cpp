#include "reference/saved_state.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>

#include "reference/arguments.hpp"
#include "reference/chunk_plan.hpp"
#include "reference/memory_set.hpp"
#include "reference/rows_8bit.hpp"
#include "reference/turn.hpp"

namespace headwater::reference {
namespace {

using Numbers = std::vector<std::int64_t>;

constexpr std::size_t kChunkNumbers = 3;  // begin, end, mode
constexpr std::size_t kStepNumbers = 2;   // first chunk, turn length
constexpr std::size_t kSetNumbers = 2;    // entries, end

void require_size(const std::string& name, std::size_t size, bool right, const std::string& allowed) {
  if (!right) reject(name + ".size", std::to_string(size), allowed);
}

/// The chunks of the archive: one after the other from position 0 on, none beyond the capacity.
std::vector<Chunk> chunks_of(const Numbers& numbers, const EffectiveOptions& options, std::int64_t capacity) {
  require_size("chunks", numbers.size(), numbers.size() % kChunkNumbers == 0, "3 numbers for each chunk");
  std::vector<Chunk> chunks;
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < numbers.size(); i += kChunkNumbers) {
    const std::string name = "chunks[" + std::to_string(i / kChunkNumbers) + "]";
    const std::int64_t begin = numbers[i];
    const std::int64_t end = numbers[i + 1];
    const std::int64_t mode = numbers[i + 2];
    if (mode < 0 || mode > 2) {
      reject(name + ".mode", std::to_string(mode), "0 (sparse), 1 (dense) or 2 (decode)");
    }
    const bool sparse = mode == static_cast<std::int64_t>(ChunkMode::sparse);
    const std::int64_t most = sparse ? std::min(options.chunk, capacity - tokens) : capacity - tokens;
    if (begin != tokens) reject(name + ".begin", std::to_string(begin), std::to_string(tokens));
    if (end <= tokens || end > tokens + most) {
      reject(name + ".end", std::to_string(end),
             std::to_string(tokens + 1) + " to " + std::to_string(tokens + most));
    }
    chunks.push_back({begin, end, static_cast<ChunkMode>(mode)});
    tokens = end;
  }
  return chunks;
}

bool same_chunk(const Chunk& a, const Chunk& b) {
  return a.begin == b.begin && a.end == b.end && a.mode == b.mode;
}

/// One step more, taken anew: it must come to these chunks, and to this length of the turn that was opened last, which
/// was `before` before the step.
void repeat_step(const std::string& name, std::span<const Chunk> chunks, std::int64_t length,
                 std::int64_t before, const EffectiveOptions& options, std::int64_t capacity,
                 History& history) {
  const std::int64_t begin = chunks.front().begin;
  const std::int64_t n = chunks.back().end - begin;
  const bool decode = chunks.front().mode == ChunkMode::decode;
  if (!decode && length < 1) reject(name + ".turn_length", std::to_string(length), "at least 1");
  const Step step = decode ? Step::decode(n) : Step::prefill(n, length);
  const Turn turn = next_turn(history.turn(), step, options, begin, capacity);
  if (decode && length != before)
    reject(name + ".turn_length", std::to_string(length), std::to_string(before));
  const std::vector<Chunk> plan = chunk_plan(begin, n, turn.mode, options.batch, options.chunk);
  if (!std::equal(plan.begin(), plan.end(), chunks.begin(), chunks.end(), same_chunk)) {
    reject(name + ".chunks", "a step from " + std::to_string(begin) + " to " + std::to_string(begin + n),
           "cut as PLAN-1 says, for these options");
  }
  history.add(turn, plan);
}

StateArchive::Element element_of(DType type) {
  if (type == DType::f16) return StateArchive::Element::f16;
  return type == DType::bf16 ? StateArchive::Element::bf16 : StateArchive::Element::f32;
}

/// Rows of the first `tokens` positions, as [Hkv][T][width].
void exchange_rows(StateArchive& archive, const std::string& name, const MutableRows& rows,
                   const Shape& shape, std::int64_t tokens, std::int64_t width) {
  const auto size = static_cast<std::int64_t>(dtype_size(rows.type));
  std::vector<StateArchive::Piece> pieces;
  for (std::int64_t g = 0; g < shape.n_head_kv; ++g) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      auto* row = static_cast<std::byte*>(rows.data) + (t * rows.row_stride + g * rows.head_stride) * size;
      pieces.push_back({row, width * size});
    }
  }
  const std::int64_t dims[] = {shape.n_head_kv, tokens, width};
  archive.array(name, element_of(rows.type), dims, pieces);
}

/// STATE-13
void exchange_groups(StateArchive& archive, const std::string& number, LayerStorage& storage,
                     std::int64_t tokens) {
  const std::int64_t heads = storage.shape().n_head_kv;
  std::vector<StateArchive::Piece> keys;
  std::vector<StateArchive::Piece> values;
  for (std::int64_t g = 0; g < heads; ++g) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::span<std::byte> key = storage.key_groups(t, g);
      const std::span<std::byte> value = storage.value_groups(t, g);
      keys.push_back({key.data(), std::ssize(key)});
      values.push_back({value.data(), std::ssize(value)});
    }
  }
  const std::int64_t key_dims[] = {heads, tokens, storage.shape().d_head / kGroupElements * kGroupBytes};
  const std::int64_t value_dims[] = {heads, tokens, storage.shape().d_value / kGroupElements * kGroupBytes};
  archive.array("key." + number, StateArchive::Element::u8, key_dims, keys);
  archive.array("value." + number, StateArchive::Element::u8, value_dims, values);
  if (!archive.loading()) return;
  for (std::int64_t g = 0; g < heads; ++g) {
    for (std::int64_t t = 0; t < tokens; ++t) storage.restore_rows(t, g);
  }
}

/// MEM-4: the set of a query head that was built when `end` tokens were processed.
void check_set(const std::string& name, std::span<const std::int32_t> set, std::int64_t count,
               std::int64_t end, const EffectiveOptions& options) {
  const std::int64_t first_local = local_begin(end, options.local);
  const std::int64_t heavy = count - (end - first_local);
  const std::int64_t pinned = std::min(options.pinned, heavy);
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(set.size()); ++i) {
    std::int64_t least = i == 0 ? 0 : set[static_cast<std::size_t>(i - 1)] + 1;
    std::int64_t most = first_local - 1;  // MEM-3
    if (i < pinned) most = least = i;     // MEM-7
    if (i >= heavy) most = least = first_local + (i - heavy);
    if (i >= count) most = least = -1;
    const std::int64_t entry = set[static_cast<std::size_t>(i)];
    if (entry >= least && entry <= most) continue;
    reject(name + "[" + std::to_string(i) + "]: entry", std::to_string(entry),
           std::to_string(least) + " to " + std::to_string(most) + " (MEM-4)");
  }
}

}  // namespace

// STATE-12
std::int64_t exchange_steps(StateArchive& archive, const EffectiveOptions& options, std::int64_t capacity,
                            History& history) {
  Numbers chunk_numbers;
  for (const Chunk& chunk : history.chunks()) {
    chunk_numbers.insert(chunk_numbers.end(),
                         {chunk.begin, chunk.end, static_cast<std::int64_t>(chunk.mode)});
  }
  Numbers step_numbers = history.step_numbers();
  archive.numbers("chunks", chunk_numbers, static_cast<std::int64_t>(kChunkNumbers) * capacity);
  archive.numbers("steps", step_numbers, static_cast<std::int64_t>(kStepNumbers) * capacity);
  if (!archive.loading()) return history.chunks().empty() ? 0 : history.chunks().back().end;

  const std::vector<Chunk> chunks = chunks_of(chunk_numbers, options, capacity);
  require_size("steps", step_numbers.size(), step_numbers.size() % kStepNumbers == 0,
               "2 numbers for each step");
  std::size_t first = 0;
  std::int64_t length = 0;  // of the turn that was opened last
  for (std::size_t i = 0; i < step_numbers.size(); i += kStepNumbers) {
    const std::string name = "steps[" + std::to_string(i / kStepNumbers) + "]";
    const bool is_last = i + kStepNumbers == step_numbers.size();
    const auto count = static_cast<std::int64_t>(chunks.size());
    const std::int64_t end = is_last ? count : step_numbers[i + kStepNumbers];
    if (step_numbers[i] != static_cast<std::int64_t>(first)) {
      reject(name + ".first_chunk", std::to_string(step_numbers[i]), std::to_string(first));
    }
    if (end <= step_numbers[i] || end > count) {
      reject(name + ".chunks", "up to " + std::to_string(end),
             "one at least, of " + std::to_string(count) + " chunks");
    }
    const auto next = static_cast<std::size_t>(end);
    repeat_step(name, std::span(chunks).subspan(first, next - first), step_numbers[i + 1], length, options,
                capacity, history);
    first = next;
    length = step_numbers[i + 1];
  }
  require_size("steps", step_numbers.size(), first == chunks.size(), "a step for every chunk");
  history.settle_all();
  return chunks.empty() ? 0 : chunks.back().end;
}

void exchange_floats(StateArchive& archive, const std::string& name, const std::vector<float>& own) {
  Numbers bits;
  for (const float value : own) bits.push_back(std::bit_cast<std::int32_t>(value));
  const Numbers asked = bits;
  archive.numbers(name, bits, static_cast<std::int64_t>(bits.size()));
  if (bits != asked) reject(name, "those saved", "those of the session's options");
}

void exchange_set_sizes(StateArchive& archive, const EffectiveOptions& options, std::span<const Chunk> chunks,
                        std::span<LayerStorage> layers) {
  Numbers numbers;
  for (const LayerStorage& layer : layers) {
    numbers.insert(numbers.end(), {layer.memory_count, layer.memory_end});
  }
  const std::size_t size = numbers.size();
  archive.numbers("sets", numbers, static_cast<std::int64_t>(size));
  if (!archive.loading()) return;
  require_size("sets", numbers.size(), numbers.size() == size, std::to_string(size));
  std::int64_t last_built = 0;  // MEM-5: the last sets are those of the last sparse chunk
  for (const Chunk& chunk : chunks) {
    if (chunk.mode == ChunkMode::sparse) last_built = chunk.begin;
  }
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    const bool dense = options.dense_layer(static_cast<std::int64_t>(layer));  // STATE-7
    const std::int64_t end = dense ? 0 : last_built;
    const std::int64_t count = std::min(options.memory(), end);
    const auto require = [&](const char* part, std::int64_t value, std::int64_t right) {
      if (value == right) return;
      reject("sets[" + std::to_string(layer) + "]." + part, std::to_string(value), std::to_string(right));
    };
    require("count", numbers[kSetNumbers * layer], count);
    require("end", numbers[kSetNumbers * layer + 1], end);
    layers[layer].memory_count = count;
    layers[layer].memory_end = end;
  }
}

void exchange_layer(StateArchive& archive, const EffectiveOptions& options, std::int64_t tokens,
                    std::int64_t layer, LayerStorage& storage) {
  const Shape& shape = storage.shape();
  const std::string number = std::to_string(layer);
  if (options.kv_bits == 8) {
    exchange_groups(archive, number, storage, tokens);
  } else if (options.kv_owner == KvOwner::session) {
    exchange_rows(archive, "key." + number, storage.keys(), shape, tokens, shape.d_head);
    exchange_rows(archive, "value." + number, storage.values(), shape, tokens, shape.d_value);
  }
  if (!options.sparse || options.select != Select::h2o) return;
  const std::int64_t width = std::min(options.memory(), tokens);
  std::vector<StateArchive::Piece> scores;
  std::vector<StateArchive::Piece> sets;
  for (std::int64_t h = 0; h < shape.n_head; ++h) {
    const std::span<std::byte> of_head = storage.scores(h, tokens);
    scores.push_back({of_head.data(), static_cast<std::int64_t>(of_head.size())});
    sets.push_back({storage.memory(h).data(), width * static_cast<std::int64_t>(sizeof(std::int32_t))});
  }
  const std::int64_t score_dims[] = {shape.n_head, tokens};
  const bool bf16_scores = options.score_type == ScoreType::bf16;
  archive.array("score." + number, bf16_scores ? StateArchive::Element::bf16 : StateArchive::Element::f32,
                score_dims, scores);
  const std::int64_t set_dims[] = {shape.n_head, width};
  archive.array("set." + number, StateArchive::Element::i32, set_dims, sets);
  if (!archive.loading()) return;
  for (std::int64_t h = 0; h < shape.n_head; ++h) {
    check_set("set." + number + " of head " + std::to_string(h), storage.memory(h), storage.memory_count,
              storage.memory_end, options);
  }
}

}  // namespace headwater::reference
