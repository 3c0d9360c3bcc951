#include "core/step_machine.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "core/chunk_plan.hpp"
#include "headwater/error.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::core {

namespace {

[[noreturn]] void refuse_state(const std::string& message) { throw Error(ErrorCode::wrong_state, message); }

[[noreturn]] void refuse_argument(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, message);
}

}  // namespace

StepMachine::StepMachine(const Shape& shape, EffectiveOptions options, bool undoes)
    : options_(std::move(options)),
      capacity_(shape.capacity),
      undoes_(undoes),
      settles_(options_.sparse && options_.select == Select::h2o) {
  attended_.assign(static_cast<std::size_t>(shape.n_layer), 0);
  take_memory();
}

void StepMachine::take_memory() {
  if (Memory::current().counts()) {
    counted_ = true;
    Memory::current().count(chunk_bytes());
    return;
  }
  chunks_.reserve(static_cast<std::size_t>(capacity_));  // a chunk has a token at least
  origins_.reserve(static_cast<std::size_t>(capacity_));
}

void StepMachine::require_not_failed() const {
  if (failed_) refuse_state(std::string("an earlier step failed half-way; allowed: ") + way_on());
}

void StepMachine::require_open(const char* call) const {
  require_not_failed();
  if (!open_) refuse_state(std::string(call) + " without an open step; allowed: begin() first");
}

void StepMachine::require_closed(const char* call) const {
  require_not_failed();
  if (open_) refuse_state(std::string(call) + " while a step is open; allowed: after end() or abort()");
}

bool StepMachine::failed() const { return failed_ && !HEADWATER_SABOTAGE("core.state.failure_hidden"); }

bool StepMachine::turn_is_sparse(std::int64_t turn_length) const {
  const bool first = tokens_ == 0;
  if (HEADWATER_SABOTAGE("core.state.dense_below_later_turns") && first) return options_.sparse;
  const bool as_first = HEADWATER_SABOTAGE("core.state.short_turn_sparse") && turn_length == options_.chunk;
  return options_.sparse_turn(turn_length, first || as_first);
}

void StepMachine::begin(const Step& step) {
  require_not_failed();
  if (open_) {
    fail();
    refuse_state(std::string("begin() while a step is open; allowed: end() before it, now only ") + way_on());
  }
  const bool prefill = step.kind == Step::Kind::prefill;
  if (!prefill && step.kind != Step::Kind::decode) {
    refuse_argument("step kind is " + std::to_string(static_cast<int>(step.kind)) +
                    "; allowed: 0 (prefill), 1 (decode)");
  }
  if (step.n < 1) refuse_argument("step of n = " + std::to_string(step.n) + " tokens; allowed: n >= 1");
  if (!prefill && step.turn_length != 0) {
    refuse_argument("turn_length is " + std::to_string(step.turn_length) + " in a decode step; allowed: 0");
  }
  std::int64_t turn_length = turn_length_;
  if (prefill && opens_turn()) {
    turn_length = step.turn_length == 0 ? step.n : step.turn_length;
    if (HEADWATER_SABOTAGE("core.state.length_of_call")) turn_length = step.n;
    if (turn_length < step.n) {
      refuse_argument("turn_length is " + std::to_string(step.turn_length) +
                      "; allowed: 0 (n) or at least n = " + std::to_string(step.n));
    }
  } else if (prefill && step.turn_length != 0 && step.turn_length != turn_length_) {
    refuse_argument("turn_length is " + std::to_string(step.turn_length) +
                    " in a call that continues a turn; allowed: 0 or the turn's own " +
                    std::to_string(turn_length_));
  }
  const std::int64_t short_by = HEADWATER_SABOTAGE("core.state.last_token_refused") ? 1 : 0;
  if (step.n > capacity_ - tokens_ - short_by) {
    throw Error(ErrorCode::capacity_exceeded, "step of n = " + std::to_string(step.n) + " tokens after " +
                                                  std::to_string(tokens_) + " stored; allowed: at most " +
                                                  std::to_string(capacity_ - tokens_) + " (capacity " +
                                                  std::to_string(capacity_) + ")");
  }

  take_memory();
  // Nothing below can fail.
  plan_begin_ = chunks_.size();
  if (prefill) {
    if (opens_turn()) {
      turn_length_ = turn_length;
      turn_sparse_ = turn_is_sparse(turn_length);
      if (HEADWATER_SABOTAGE("core.state.dense_below_of_call") && !options_.sparse_turn(step.n, true)) {
        turn_sparse_ = false;
      }
    }
    if (turn_sparse_) {
      append_sparse_chunks(tokens_, step.n, options_.batch, options_.chunk, chunks_);
    } else {
      chunks_.push_back({tokens_, tokens_ + step.n, ChunkMode::dense});
    }
    state_ = SessionState::prefilling;
  } else {
    chunks_.push_back({tokens_, tokens_ + step.n, ChunkMode::decode});
    if (!HEADWATER_SABOTAGE("core.state.decode_keeps_the_turn")) state_ = SessionState::decoding;
  }
  append_origins();
  step_tokens_ = step.n;
  layers_left_ = static_cast<std::int64_t>(attended_.size());
  std::fill(attended_.begin(), attended_.end(), static_cast<char>(0));
  open_ = true;
}

void StepMachine::append_origins() {
  std::int32_t sparse = origins_.empty() ? 0 : origins_.back().sparse;
  for (const Chunk& chunk : plan()) {
    if (chunk.mode == ChunkMode::sparse) ++sparse;
    origins_.push_back({turn_length_, static_cast<std::int32_t>(plan_begin_), sparse});
  }
}

void StepMachine::check_layer(std::int64_t layer) const {
  const auto layers = static_cast<std::int64_t>(attended_.size());
  if (layer < 0 || layer >= layers) {
    refuse_argument("layer is " + std::to_string(layer) + "; allowed: 0 .. " + std::to_string(layers - 1));
  }
  if (attended_[static_cast<std::size_t>(layer)] && !HEADWATER_SABOTAGE("core.state.layer_twice")) {
    refuse_state("layer " + std::to_string(layer) + " attended twice in one step; allowed: once, now only " +
                 way_on());
  }
}

void StepMachine::enter_layer(std::int64_t layer) {
  require_open("attend()");
  try {
    check_layer(layer);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::wrong_state) fail();
    throw;
  }
  attended_[static_cast<std::size_t>(layer)] = 1;
  --layers_left_;
}

void StepMachine::fail_layer(std::int64_t layer) {
  attended_[static_cast<std::size_t>(layer)] = 0;
  fail();
}

void StepMachine::end() {
  require_open("end()");
  if (layers_left_ != 0 && !HEADWATER_SABOTAGE("core.state.end_without_a_layer")) {
    fail();
    refuse_state("end() with " + std::to_string(layers_left_) +
                 " layers not attended; allowed: every layer once, now only " + way_on());
  }
  if (!HEADWATER_SABOTAGE("core.state.tokens_not_counted")) tokens_ += step_tokens_;
  if (HEADWATER_SABOTAGE("core.state.tokens_in_16_bits")) tokens_ &= 0xFFFF;
  step_tokens_ = 0;
  open_ = false;
  settle();
}

void StepMachine::settle() {
  if (!settles_) return;
  const std::int64_t settled = origins_.back().sparse - options_.checkpoints;
  if (settled <= 0) return;
  const auto last = std::partition_point(origins_.begin(), origins_.end(),
                                         [&](const Origin& origin) { return origin.sparse < settled; });
  if (HEADWATER_SABOTAGE("core.state.settled_chunks_come_back")) settled_end_ = 0;
  // Not smaller: chunks that truncate() dropped were none of the settled ones.
  settled_end_ = std::max(settled_end_, chunks_[static_cast<std::size_t>(last - origins_.begin())].end);
}

void StepMachine::abort() {
  if (!open_) refuse_state("abort() without an open step; allowed: between begin() and end()");
  chunks_.resize(plan_begin_);
  origins_.resize(plan_begin_);
  open_ = false;
  failed_ = false;
  step_tokens_ = 0;
  resume();
}

std::int64_t StepMachine::truncate(std::int64_t n) {
  require_closed("truncate()");
  if (n < 0 || n > tokens_) {
    refuse_argument("truncate to n = " + std::to_string(n) + " tokens; allowed: 0 .. " +
                    std::to_string(tokens_));
  }
  if (n == tokens_) return 0;
  const std::int64_t sparse = origins_.back().sparse;
  if (n == 0) {
    reset();
    return sparse;
  }
  const auto last =
      std::partition_point(chunks_.begin(), chunks_.end(), [&](const Chunk& chunk) { return chunk.end < n; });
  require_possible(n, *last);
  if (!HEADWATER_SABOTAGE("core.state.last_chunk_keeps_its_end")) last->end = n;
  chunks_.erase(last + 1, chunks_.end());
  origins_.resize(chunks_.size());
  tokens_ = n;
  resume();
  return sparse - origins_.back().sparse;
}

void StepMachine::exchange(StateArchive& archive) {
  std::vector<std::int64_t> numbers;  // of chunks: begin, end, mode
  std::vector<std::int64_t> steps;    // first chunk, turn length
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    const Chunk& chunk = chunks_[i];
    numbers.insert(numbers.end(), {chunk.begin, chunk.end, static_cast<std::int64_t>(chunk.mode)});
    if (static_cast<std::size_t>(origins_[i].step_begin) != i) continue;
    steps.insert(steps.end(), {static_cast<std::int64_t>(i), origins_[i].turn_length});
  }
  archive.numbers("chunks", numbers, 3 * capacity_);
  archive.numbers("steps", steps, 2 * capacity_);
  if (!archive.loading()) return;
  if (numbers.size() % 3 != 0 || steps.size() % 2 != 0 || numbers.empty() != steps.empty()) {
    refuse_argument("chunks and steps have " + std::to_string(numbers.size()) + " and " +
                    std::to_string(steps.size()) + " numbers; allowed: 3 a chunk, 2 a step");
  }
  std::vector<Chunk> chunks;
  chunks.reserve(numbers.size() / 3);
  for (std::size_t i = 0; i < numbers.size(); i += 3) {
    if (numbers[i + 2] < 0 || numbers[i + 2] > 2) {
      refuse_argument("mode of chunk " + std::to_string(i / 3) + " is " + std::to_string(numbers[i + 2]) +
                      "; allowed: 0 (sparse), 1 (dense), 2 (decode)");
    }
    chunks.push_back({numbers[i], numbers[i + 1], static_cast<ChunkMode>(numbers[i + 2])});
  }
  const auto count = static_cast<std::int64_t>(chunks.size());
  std::int64_t first = 0;
  for (std::size_t i = 0; i < steps.size(); i += 2) {
    const std::int64_t last = i + 2 < steps.size() ? steps[i + 2] : count;
    if (steps[i] != first || last <= first || last > count) {
      refuse_argument("step " + std::to_string(i / 2) + " has chunks " + std::to_string(steps[i]) + " .. " +
                      std::to_string(last) + " (excluded); allowed: from " + std::to_string(first) +
                      ", one at least, of " + std::to_string(count));
    }
    const auto length = static_cast<std::size_t>(last - first);
    replay(std::span(chunks).subspan(static_cast<std::size_t>(first), length), steps[i + 1]);
    first = last;
  }
  if (!settles_) return;
  for (const Chunk& chunk : chunks_) {
    if (chunk.mode == ChunkMode::sparse) settled_end_ = chunk.end;
  }
}

void StepMachine::replay(std::span<const Chunk> chunks, std::int64_t turn_length) {
  const auto refuse = [&](const std::string& why) {
    refuse_argument("step at position " + std::to_string(tokens_) + " " + why);
  };
  const std::int64_t end = chunks.back().end;
  if (end <= tokens_ || end > capacity_) {
    refuse("ends at " + std::to_string(end) + "; allowed: " + std::to_string(tokens_ + 1) + " .. " +
           std::to_string(capacity_));
  }
  const bool decode = chunks.front().mode == ChunkMode::decode;
  if (!decode && turn_length < 1)
    refuse("has turn length " + std::to_string(turn_length) + "; allowed: 1 ..");
  begin(decode ? Step::decode(end - tokens_) : Step::prefill(end - tokens_, turn_length));
  const auto same = [](const Chunk& a, const Chunk& b) {
    return a.begin == b.begin && a.end == b.end && a.mode == b.mode;
  };
  if (!std::ranges::equal(plan(), chunks, same) && !HEADWATER_SABOTAGE("core.load.plan_believed")) {
    refuse("has other chunks than a session with these options; allowed: those of PLAN-1");
  }
  if (turn_length_ != turn_length) {
    refuse("has turn length " + std::to_string(turn_length) + "; allowed: " + std::to_string(turn_length_));
  }
  layers_left_ = 0;
  this->end();
}

void StepMachine::require_possible(std::int64_t n, const Chunk& last) const {
  if (!settles_) return;
  const bool settled = n < settled_end_;
  const bool inside = last.mode == ChunkMode::sparse && n < last.end;
  if (!settled && !inside) return;
  refuse_argument("truncate to n = " + std::to_string(n) + " tokens; allowed: 0, or " +
                  std::to_string(settled_end_) + " .. " + std::to_string(tokens_) +
                  " but not inside a sparse chunk; nearest: " + std::to_string(settled ? 0 : last.begin) +
                  " and " + std::to_string(settled ? settled_end_ : last.end));
}

void StepMachine::resume() {
  if (chunks_.empty()) return reset();
  const Chunk& last = chunks_.back();
  const Origin& origin = origins_.back();
  state_ = last.mode == ChunkMode::decode ? SessionState::decoding : SessionState::prefilling;
  if (!HEADWATER_SABOTAGE("core.state.length_of_dropped_turn")) turn_length_ = origin.turn_length;
  turn_sparse_ = last.mode == ChunkMode::sparse;
  plan_begin_ = static_cast<std::size_t>(origin.step_begin);
  if (HEADWATER_SABOTAGE("core.state.step_begin_in_16_bits")) plan_begin_ &= 0xFFFF;
}

void StepMachine::reset() {
  state_ = SessionState::empty;
  tokens_ = 0;
  turn_length_ = 0;
  turn_sparse_ = false;
  open_ = false;
  failed_ = false;
  step_tokens_ = 0;
  layers_left_ = 0;
  std::fill(attended_.begin(), attended_.end(), static_cast<char>(0));
  chunks_.clear();
  origins_.clear();
  plan_begin_ = 0;
  settled_end_ = 0;
}

}  // namespace headwater::core
