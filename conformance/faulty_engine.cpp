#include "conformance/faulty_engine.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include "conformance/formats.hpp"
#include "conformance/forwarded_session.hpp"

namespace headwater::conformance {
namespace {

std::byte* element(const MutableRows& rows, std::int64_t t, std::int64_t h, std::int64_t x) {
  return static_cast<std::byte*>(rows.data) +
         (t * rows.row_stride + h * rows.head_stride + x) * static_cast<std::int64_t>(dtype_size(rows.type));
}

const std::byte* element(const Rows& rows, std::int64_t t, std::int64_t h, std::int64_t x) {
  return static_cast<const std::byte*>(rows.data) +
         (t * rows.row_stride + h * rows.head_stride + x) * static_cast<std::int64_t>(dtype_size(rows.type));
}

// A copy of rows, token-major, in F32: the arguments of an engine must not be written.
std::vector<float> copy(const Rows& rows, std::int64_t n, std::int64_t heads, std::int64_t width) {
  std::vector<float> values;
  for (std::int64_t t = 0; t < n; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t x = 0; x < width; ++x)
        values.push_back(load_element(rows.type, element(rows, t, h, x)));
    }
  }
  return values;
}

class FaultySession final : public ForwardedSession {
 public:
  FaultySession(std::unique_ptr<Session> inner, Fault fault, int opened, const Options& options)
      : ForwardedSession(std::move(inner)), fault_(fault), opened_(opened), options_(options) {}

  void begin(const Step& step) override {
    inner_->begin(step);
    kept_scores_.clear();
    kept_sets_.clear();
    if (fault_ == Fault::interrupt_outside && interrupt_) (void)interrupt_();
    n_ = step.n;
    open_ = true;
    ++steps_;
  }
  void end() override {
    inner_->end();
    open_ = false;
  }
  void reset() override {
    inner_->reset();
    open_ = false;
    was_reset_ = true;
    steps_ = 0;
  }
  void abort() override {
    if (fault_ == Fault::abort_without_step && !open_) return;
    if (fault_ == Fault::abort_keeps_sets) keep_sets();
    inner_->abort();
    open_ = false;
  }
  void truncate(std::int64_t n) override {
    std::vector<std::vector<std::byte>> scores;
    if (fault_ == Fault::truncate_keeps_scores) scores = all_scores();
    inner_->truncate(n);
    kept_scores_ = std::move(scores);
  }
  void set_interrupt(Interrupt interrupt) override;
  void attend(std::int64_t layer, const Rows& q, const Rows& k, const Rows& v, const MutableRows& out,
              const LseOutput& lse) override;
  [[nodiscard]] ScoreView scores(std::int64_t layer) const override;
  [[nodiscard]] MemoryView memory(std::int64_t layer) const override;

  void set_observer(Observer observer) override {
    if (!observer) {
      inner_->set_observer({});
      return;
    }
    inner_->set_observer(
        [this, observer = std::move(observer)](const ChunkRecord& record) { report(record, observer); });
  }

  [[nodiscard]] std::int64_t tokens() const override {
    return inner_->tokens() + (fault_ == Fault::counts_open_step && open_ ? n_ : 0);
  }
  [[nodiscard]] std::span<const Chunk> plan() const override {
    const std::span<const Chunk> plan = inner_->plan();
    if (fault_ != Fault::plans_one_more || plan.empty()) return plan;
    plan_.assign(plan.begin(), plan.end());
    plan_.push_back(plan.back());
    return plan_;
  }
  [[nodiscard]] std::span<const Chunk> chunks() const override {
    const std::span<const Chunk> chunks = inner_->chunks();
    return fault_ == Fault::forgets_chunks ? chunks.last(inner_->plan().size()) : chunks;
  }

 private:
  void report(const ChunkRecord& record, const Observer& observer);
  void spoil_votes(ChunkRecord& record);
  void spoil_search(float* votes, std::int64_t count) const;
  void spoil_choice(const ChunkRecord& record, std::int64_t index, std::int32_t* set) const;
  void spoil_outputs(const Rows& v, const MutableRows& out);
  void spoil_lse(const LseOutput& lse) const;
  void keep_sets();
  [[nodiscard]] std::vector<std::vector<std::byte>> all_scores() const;
  void change(const MutableRows& out, std::int64_t t, std::int64_t h, std::int64_t x, double value) const {
    store_element(out.type, static_cast<float>(value), element(out, t, h, x));
  }
  [[nodiscard]] float value(const MutableRows& out, std::int64_t t, std::int64_t h, std::int64_t x) const {
    return load_element(out.type, element(out, t, h, x));
  }

  Fault fault_;
  int opened_;
  Options options_;
  Interrupt interrupt_;
  bool asked_ = false;  // in the call that runs
  std::int64_t n_ = 0;
  std::int64_t steps_ = 0;  // since the session was empty
  bool open_ = false;
  bool was_reset_ = false;
  std::vector<std::int32_t> last_sets_;
  std::vector<float> sums_;
  std::vector<float> votes_;
  std::vector<std::int32_t> sets_;
  mutable std::vector<Chunk> plan_;
  mutable std::vector<std::uint16_t> scores_;
  std::vector<std::unique_ptr<int>> taken_;
  std::vector<std::vector<std::byte>> kept_scores_;   // per layer; empty: those of the engine
  std::vector<std::vector<std::int32_t>> kept_sets_;  // the same
  std::vector<std::int64_t> kept_counts_;
};

void FaultySession::set_interrupt(Interrupt interrupt) {
  interrupt_ = interrupt;
  if (!interrupt || fault_ == Fault::interrupt_ignored) {
    inner_->set_interrupt({});
    return;
  }
  inner_->set_interrupt([this] {
    bool stop = false;
    if (fault_ == Fault::interrupt_asked_once && asked_) return false;
    asked_ = true;
    if (fault_ == Fault::interrupt_on_other_thread) {
      std::thread([&] { stop = interrupt_(); }).join();
    } else {
      stop = interrupt_();
    }
    return stop && fault_ != Fault::interrupt_answer_lost;
  });
}

void FaultySession::spoil_lse(const LseOutput& lse) const {
  if (lse.data == nullptr) return;
  if (fault_ == Fault::lse_off_by_ulps) lse.data[0] = std::nextafter(lse.data[0], 0.0f);
  if (fault_ != Fault::lse_without_sink || options_.sinks.empty()) return;
  for (std::int64_t t = 0; t < n_; ++t) {
    for (std::int64_t h = 0; h < shape().n_head; ++h) {
      float& sum = lse.data[t * lse.row_stride + h * lse.head_stride];
      sum += std::log1p(-std::exp(options_.sinks[static_cast<std::size_t>(h)] - sum));
    }
  }
}

void FaultySession::keep_sets() {
  for (std::int64_t layer = 0; layer < shape().n_layer; ++layer) {
    const MemoryView view = inner_->memory(layer);
    const std::int64_t size = view.data == nullptr ? 0 : (shape().n_head - 1) * view.head_stride + view.width;
    kept_sets_.emplace_back(view.data, view.data + size);
    kept_counts_.push_back(view.count);
  }
}

std::vector<std::vector<std::byte>> FaultySession::all_scores() const {
  std::vector<std::vector<std::byte>> all;
  for (std::int64_t layer = 0; layer < shape().n_layer; ++layer) {
    const ScoreView view = inner_->scores(layer);
    const std::int64_t size = view.type == ScoreType::bf16 ? 2 : 4;
    const auto* from = static_cast<const std::byte*>(view.data);
    all.emplace_back(from, from + ((shape().n_head - 1) * view.head_stride + tokens()) * size);
  }
  return all;
}

void FaultySession::attend(std::int64_t layer, const Rows& q, const Rows& k, const Rows& v,
                           const MutableRows& out, const LseOutput& lse) {
  if (fault_ == Fault::allocates) taken_.push_back(std::make_unique<int>(1));
  const Shape& s = shape();
  if (fault_ == Fault::drops_newest_key) {
    std::vector<float> keys = copy(k, n_, s.n_head_kv, s.d_head);
    std::vector<float> values = copy(v, n_, s.n_head_kv, s.d_value);
    std::fill(keys.end() - s.n_head_kv * s.d_head, keys.end(), 0.0f);
    std::fill(values.end() - s.n_head_kv * s.d_value, values.end(), 0.0f);
    inner_->attend(layer, q, Rows::token_major(keys.data(), DType::f32, s.n_head_kv, s.d_head),
                   Rows::token_major(values.data(), DType::f32, s.n_head_kv, s.d_value), out, lse);
    return;
  }
  if (fault_ == Fault::leaves_outputs) {
    std::vector<float> spare(static_cast<std::size_t>(n_ * s.n_head * s.d_value));
    inner_->attend(layer, q, k, v, MutableRows::token_major(spare.data(), DType::f32, s.n_head, s.d_value),
                   lse);
    for (std::int64_t t = 0; t + 1 < n_; ++t) {
      for (std::int64_t h = 0; h < s.n_head; ++h) {
        for (std::int64_t x = 0; x < s.d_value; ++x) {
          change(out, t, h, x, spare[static_cast<std::size_t>((t * s.n_head + h) * s.d_value + x)]);
        }
      }
    }
    return;
  }
  asked_ = false;
  inner_->attend(layer, q, k, v, out, lse);
  spoil_outputs(v, out);
  spoil_lse(lse);
}

void FaultySession::spoil_outputs(const Rows& v, const MutableRows& out) {
  const Shape& s = shape();
  const float first = value(out, 0, 0, 0);
  switch (fault_) {
    case Fault::adds_to_outputs:
    case Fault::scales_outputs:
      for (std::int64_t t = 0; t < n_; ++t) {
        for (std::int64_t h = 0; h < s.n_head; ++h) {
          for (std::int64_t x = 0; x < s.d_value; ++x) {
            const double o = value(out, t, h, x);
            change(out, t, h, x, fault_ == Fault::adds_to_outputs ? o + 1e-3 : o * (1.0 + 0x1p-15));
          }
        }
      }
      break;
    case Fault::swaps_heads:
      if (s.n_head < 2) break;
      for (std::int64_t t = 0; t < n_; ++t) {
        for (std::int64_t x = 0; x < s.d_value; ++x) {
          const float a = value(out, t, 0, x);
          change(out, t, 0, x, value(out, t, 1, x));
          change(out, t, 1, x, a);
        }
      }
      break;
    case Fault::nan_output:
      change(out, n_ - 1, s.n_head - 1, s.d_value - 1, std::numeric_limits<double>::quiet_NaN());
      break;
    case Fault::writes_before_rows: store_element(out.type, 1.0f, element(out, 0, 0, -1)); break;
    case Fault::writes_between_rows:
      store_element(out.type, 1.0f, element(out, n_ - 1, s.n_head - 1, s.d_value));
      break;
    case Fault::reads_past_rows:
      change(out, 0, 0, 0, load_element(v.type, element(v, n_ - 1, s.n_head_kv - 1, s.d_value)));
      break;
    case Fault::differs_by_thread:
      if (options_.threads == 3) change(out, 0, 0, 0, std::nextafter(first, 2.0f));
      break;
    case Fault::differs_by_run:
      if (opened_ % 2 == 1) change(out, 0, 0, 0, std::nextafter(first, 2.0f));
      break;
    case Fault::sees_next_token:
      change(out, 0, 0, 0, first + 1e-3 * load_element(v.type, element(v, n_ - 1, 0, 0)));
      break;
    case Fault::remembers_steps:
      if (steps_ > 2) change(out, 0, 0, 0, std::nextafter(first, 2.0f));
      break;
    case Fault::forgets_to_reset:
      if (was_reset_) change(out, 0, 0, 0, std::nextafter(first, 2.0f));
      break;
    default: break;
  }
}

// Faults in which candidates of one set are searched (SEL-12). No vote that the first stage keeps is changed, so that the
// sets still follow from the votes.
void FaultySession::spoil_search(float* votes, std::int64_t count) const {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  constexpr std::int64_t kRegion = 32;
  const EffectiveOptions& options = inner_->options();
  const std::int64_t kept = options.refine * options.heavy / options.key_block;
  if (kept >= count) return;
  std::vector<float> sorted(votes, votes + count);
  std::nth_element(sorted.begin(), sorted.begin() + kept - 1, sorted.end(), std::greater<>());
  const float least_kept = sorted[static_cast<std::size_t>(kept - 1)];
  if (fault_ == Fault::leaves_candidate_out) {
    float* const one =
        std::find_if(votes, votes + count, [&](float vote) { return vote > kNever && vote < least_kept; });
    if (one != votes + count) *one = kNever;
    return;
  }
  float* searched = nullptr;
  float* other = nullptr;
  for (float* region = votes; count > 2048 && region + kRegion <= votes + count; region += kRegion) {
    const float most = *std::max_element(region, region + kRegion);
    if (most == kNever) {
      other = region;
    } else if (most < least_kept) {
      searched = region;
    }
  }
  if (searched == nullptr) return;
  if (fault_ != Fault::leaves_region_out) {
    if (other == nullptr) return;
    std::copy_n(searched, kRegion, other);
  }
  if (fault_ != Fault::searches_region_more) std::fill_n(searched, kRegion, kNever);
}

// Faults in which candidates of a set of rule `sketches` are chosen.
void FaultySession::spoil_choice(const ChunkRecord& record, std::int64_t index, std::int32_t* set) const {
  if (record.voted_tokens == 0) return;
  const float* votes = record.token_votes + index * record.voted_tokens;
  const auto candidate = [&](const float* vote) {
    return static_cast<std::int32_t>(inner_->options().pinned + (vote - votes));
  };
  std::int32_t* const end = std::find(set, set + record.memory_count, -1);
  if (fault_ == Fault::misses_best_candidate) {
    const float* best = std::max_element(votes, votes + record.voted_tokens);
    std::int32_t* const at = std::find(set, end, candidate(best));
    if (at == end) return;
    std::copy(at + 1, end, at);
    end[-1] = -1;
  } else if (end < set + record.memory_count) {
    const float* worst = std::min_element(votes, votes + record.voted_tokens);
    if (std::find(set, end, candidate(worst)) != end) return;
    *end = candidate(worst);
    std::sort(set, end + 1);
  }
}

// The faults in what rules `blocks` and `sketches` report.
void FaultySession::spoil_votes(ChunkRecord& record) {
  const std::int64_t sets = shape().n_head_kv * record.query_blocks;
  const auto copy_votes = [&](const float* from, std::int64_t count) {
    votes_.assign(from, from + sets * count);
    return votes_.data();
  };
  const auto swap_first = [&](std::int64_t count) {
    for (std::int64_t s = 0; s < sets && count > 1; ++s) {
      std::swap(votes_[static_cast<std::size_t>(s * count)], votes_[static_cast<std::size_t>(s * count + 1)]);
    }
  };
  const auto down_by_ulp = [&] {
    for (float& vote : votes_) {
      if (vote != 0.0f) vote = std::nextafter(vote, -std::numeric_limits<float>::infinity());
    }
  };
  if (record.block_votes != nullptr) {
    const std::int64_t count = record.candidate_blocks;
    if (fault_ == Fault::block_votes_off_by_ulps) {
      record.block_votes = copy_votes(record.block_votes, count);
      down_by_ulp();
    }
    if (fault_ == Fault::swaps_block_votes) {
      record.block_votes = copy_votes(record.block_votes, count);
      swap_first(count);
    }
    if (fault_ == Fault::leaves_candidate_out || fault_ == Fault::leaves_region_out ||
        fault_ == Fault::searches_another_region || fault_ == Fault::searches_region_more) {
      record.block_votes = copy_votes(record.block_votes, count);
      for (std::int64_t s = 0; s < sets; ++s) spoil_search(votes_.data() + s * count, count);
    }
    if (fault_ == Fault::one_candidate_fewer && --record.candidate_blocks == 0) record.block_votes = nullptr;
  }
  if (record.token_votes != nullptr && fault_ == Fault::token_votes_off_by_ulps) {
    record.token_votes = copy_votes(record.token_votes, record.voted_tokens);
    down_by_ulp();
  }
  if (record.token_votes != nullptr && fault_ == Fault::swaps_token_votes) {
    record.token_votes = copy_votes(record.token_votes, record.voted_tokens);
    swap_first(record.voted_tokens);
  }
  if (fault_ == Fault::reports_column_sums && record.query_blocks > 0) {
    sums_.assign(static_cast<std::size_t>(shape().n_head * record.row_stride), 0.0f);
    record.colsum_intra = sums_.data();
  }
  if (fault_ == Fault::shifts_unchosen_vote && record.token_votes != nullptr) {
    const std::int64_t count = record.voted_tokens;
    record.token_votes = copy_votes(record.token_votes, count);
    const float least = static_cast<float>(std::log(options_.least_weight));
    for (float& vote : votes_) {
      if (vote < least) vote -= 1e-3f;
    }
  }
  const bool moves_sets = fault_ == Fault::set_of_first_block || fault_ == Fault::key_twice ||
                          fault_ == Fault::misses_best_candidate || fault_ == Fault::chooses_below_least ||
                          fault_ == Fault::set_not_sorted;
  if (!moves_sets || record.memory_count < 2 || record.query_blocks == 0) return;
  sets_.assign(record.memory, record.memory + sets * record.memory_stride);
  for (std::int64_t s = 0; s < sets; ++s) {
    const auto set = sets_.begin() + s * record.memory_stride;
    if (fault_ == Fault::key_twice) {
      set[1] = set[0];
    } else if (fault_ == Fault::set_not_sorted) {
      std::swap(set[0], set[1]);
    } else if (fault_ != Fault::set_of_first_block) {
      spoil_choice(record, s, &*set);
    } else {
      std::copy_n(sets_.begin() + s / record.query_blocks * record.query_blocks * record.memory_stride,
                  record.memory_stride, set);
    }
  }
  record.memory = sets_.data();
}

void FaultySession::report(const ChunkRecord& record, const Observer& observer) {
  ChunkRecord changed = record;
  const std::int64_t heads = shape().n_head;
  const std::int64_t length = record.chunk.end - record.chunk.begin;
  // A copy of one of the per-row arrays, with the record's own stride.
  const auto copy_rows = [&](const float* from) {
    sums_.assign(static_cast<std::size_t>(heads * record.row_stride), 0.0f);
    for (std::int64_t h = 0; h < heads; ++h) {
      std::copy_n(from + h * record.row_stride, length, sums_.data() + h * record.row_stride);
    }
    return sums_.data();
  };
  if (fault_ == Fault::shifts_lse) {
    changed.lse = copy_rows(record.lse);
    for (float& x : sums_) x += 1e-4f;
  }
  if (fault_ == Fault::nan_lse) {
    changed.lse = copy_rows(record.lse);
    sums_.front() = std::numeric_limits<float>::quiet_NaN();
  }
  if (fault_ == Fault::column_sum_missing_query && record.colsum_intra != nullptr) {
    changed.colsum_intra = copy_rows(record.colsum_intra);
    for (float& x : sums_) x *= 1.0f - 1.0f / static_cast<float>(length + 1);
  }
  if (fault_ == Fault::column_sum_off_by_ulps && record.colsum_intra != nullptr) {
    changed.colsum_intra = copy_rows(record.colsum_intra);
    for (float& x : sums_) x = std::nextafter(x, std::numeric_limits<float>::infinity());
  }
  spoil_votes(changed);
  if (fault_ == Fault::stale_sets && record.memory_count > 0) {
    const std::int64_t sets = record.query_blocks > 0 ? shape().n_head_kv * record.query_blocks : heads;
    const auto size = static_cast<std::size_t>(sets * record.memory_stride);
    std::vector<std::int32_t> now(record.memory, record.memory + size);
    if (last_sets_.size() != size) last_sets_ = now;
    changed.memory = last_sets_.data();
    observer(changed);
    last_sets_ = std::move(now);
    return;
  }
  observer(changed);
}

MemoryView FaultySession::memory(std::int64_t layer) const {
  MemoryView view = inner_->memory(layer);
  if (kept_sets_.empty() || view.data == nullptr) return view;
  view.data = kept_sets_[static_cast<std::size_t>(layer)].data();
  view.count = kept_counts_[static_cast<std::size_t>(layer)];
  return view;
}

ScoreView FaultySession::scores(std::int64_t layer) const {
  ScoreView view = inner_->scores(layer);
  if (!kept_scores_.empty() && tokens() > 0) {
    view.data = kept_scores_[static_cast<std::size_t>(layer)].data();
    return view;
  }
  if (fault_ != Fault::scores_off_by_one || view.type != ScoreType::bf16 || tokens() == 0) return view;
  const auto* from = static_cast<const std::uint16_t*>(view.data);
  scores_.assign(from, from + (shape().n_head - 1) * view.head_stride + tokens());
  ++scores_.back();
  view.data = scores_.data();
  return view;
}

class FaultyEngine final : public Engine {
 public:
  FaultyEngine(const Engine& inner, Fault fault) : inner_(inner), fault_(fault) {}
  [[nodiscard]] std::string_view name() const override { return inner_.name(); }
  [[nodiscard]] std::string_view isa() const override { return inner_.isa(); }
  [[nodiscard]] std::string_view description() const override {
    return "an engine with a fault, for the self-test";
  }
  [[nodiscard]] std::string unavailable_because() const override { return inner_.unavailable_because(); }
  [[nodiscard]] Claims claims() const override {
    Claims claims = inner_.claims();
    if (fault_ == Fault::hides_a_claim) claims.interrupt = false;
    return claims;
  }
  [[nodiscard]] std::unique_ptr<Session> open(const Shape& shape, const Options& options) const override {
    Options asked = options;
    if (fault_ == Fault::settles_late && asked.checkpoints < 65536) ++asked.checkpoints;
    if (fault_ == Fault::settles_early) asked.checkpoints = std::max<std::int64_t>(0, asked.checkpoints - 1);
    if (fault_ == Fault::ignores_host_threads) asked.parallel_for = nullptr;
    if (fault_ == Fault::ignores_host_memory) asked.allocator = {};
    return std::make_unique<FaultySession>(inner_.open(shape, asked), fault_, opened_++, options);
  }
  [[nodiscard]] MemoryEstimate estimate(const Shape& shape, const Options& options) const override {
    MemoryEstimate estimate = inner_.estimate(shape, options);
    if (fault_ == Fault::estimates_too_little) estimate.full.kv = estimate.opened.kv;
    return estimate;
  }

 private:
  const Engine& inner_;
  Fault fault_;
  mutable std::atomic<int> opened_{0};
};

}  // namespace

const char* fault_name(Fault fault) {
  switch (fault) {
    case Fault::none: return "none";
    case Fault::adds_to_outputs: return "adds_to_outputs";
    case Fault::scales_outputs: return "scales_outputs";
    case Fault::swaps_heads: return "swaps_heads";
    case Fault::drops_newest_key: return "drops_newest_key";
    case Fault::shifts_lse: return "shifts_lse";
    case Fault::column_sum_off_by_ulps: return "column_sum_off_by_ulps";
    case Fault::column_sum_missing_query: return "column_sum_missing_query";
    case Fault::stale_sets: return "stale_sets";
    case Fault::scores_off_by_one: return "scores_off_by_one";
    case Fault::leaves_outputs: return "leaves_outputs";
    case Fault::nan_output: return "nan_output";
    case Fault::nan_lse: return "nan_lse";
    case Fault::writes_before_rows: return "writes_before_rows";
    case Fault::writes_between_rows: return "writes_between_rows";
    case Fault::reads_past_rows: return "reads_past_rows";
    case Fault::differs_by_thread: return "differs_by_thread";
    case Fault::differs_by_run: return "differs_by_run";
    case Fault::sees_next_token: return "sees_next_token";
    case Fault::allocates: return "allocates";
    case Fault::forgets_to_reset: return "forgets_to_reset";
    case Fault::plans_one_more: return "plans_one_more";
    case Fault::forgets_chunks: return "forgets_chunks";
    case Fault::counts_open_step: return "counts_open_step";
    case Fault::block_votes_off_by_ulps: return "block_votes_off_by_ulps";
    case Fault::token_votes_off_by_ulps: return "token_votes_off_by_ulps";
    case Fault::swaps_block_votes: return "swaps_block_votes";
    case Fault::swaps_token_votes: return "swaps_token_votes";
    case Fault::set_of_first_block: return "set_of_first_block";
    case Fault::key_twice: return "key_twice";
    case Fault::reports_column_sums: return "reports_column_sums";
    case Fault::one_candidate_fewer: return "one_candidate_fewer";
    case Fault::leaves_candidate_out: return "leaves_candidate_out";
    case Fault::leaves_region_out: return "leaves_region_out";
    case Fault::searches_another_region: return "searches_another_region";
    case Fault::searches_region_more: return "searches_region_more";
    case Fault::shifts_unchosen_vote: return "shifts_unchosen_vote";
    case Fault::misses_best_candidate: return "misses_best_candidate";
    case Fault::chooses_below_least: return "chooses_below_least";
    case Fault::set_not_sorted: return "set_not_sorted";
    case Fault::remembers_steps: return "remembers_steps";
    case Fault::abort_keeps_sets: return "abort_keeps_sets";
    case Fault::abort_without_step: return "abort_without_step";
    case Fault::truncate_keeps_scores: return "truncate_keeps_scores";
    case Fault::settles_late: return "settles_late";
    case Fault::settles_early: return "settles_early";
    case Fault::lse_without_sink: return "lse_without_sink";
    case Fault::lse_off_by_ulps: return "lse_off_by_ulps";
    case Fault::interrupt_ignored: return "interrupt_ignored";
    case Fault::interrupt_answer_lost: return "interrupt_answer_lost";
    case Fault::interrupt_asked_once: return "interrupt_asked_once";
    case Fault::interrupt_on_other_thread: return "interrupt_on_other_thread";
    case Fault::interrupt_outside: return "interrupt_outside";
    case Fault::hides_a_claim: return "hides_a_claim";
    case Fault::ignores_host_memory: return "ignores_host_memory";
    case Fault::estimates_too_little: return "estimates_too_little";
    case Fault::ignores_host_threads: return "ignores_host_threads";
  }
  return "?";
}

std::unique_ptr<Engine> faulty_engine(const Engine& inner, Fault fault) {
  return std::make_unique<FaultyEngine>(inner, fault);
}

}  // namespace headwater::conformance
