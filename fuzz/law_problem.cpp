#include "fuzz/law_problem.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>

#include "conformance/forced.hpp"
#include "conformance/formats.hpp"
#include "conformance/session_checks.hpp"

namespace headwater::fuzz {

namespace {

template <typename T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <typename T>
bool same(const std::vector<std::vector<T>>& a, const std::vector<std::vector<T>>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return same(x, y); });
}

}  // namespace

std::vector<std::vector<float>> scores_of(const Session& session) {
  const ScoreView view = session.scores(0);
  if (view.data == nullptr) return {};  // SEL-9
  std::vector<std::vector<float>> scores(static_cast<std::size_t>(session.shape().n_head));
  for (std::size_t head = 0; head < scores.size(); ++head) {
    for (std::int64_t t = 0; t < session.tokens(); ++t) {
      const std::int64_t at = static_cast<std::int64_t>(head) * view.head_stride + t;
      const float score =
          view.type == ScoreType::f32
              ? static_cast<const float*>(view.data)[at]
              : std::bit_cast<float>(
                    static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(view.data)[at]) << 16);
      scores[head].push_back(score);
    }
  }
  return scores;
}

namespace {

SeenChunk seen(const ChunkRecord& record, const Shape& shape) {
  SeenChunk chunk{record.chunk, record.memory_count, {}, {}, {}};
  const std::int64_t length = record.chunk.end - record.chunk.begin;
  const std::int64_t heads = record.colsum_intra != nullptr ? shape.n_head : 0;
  for (std::int64_t i = 0; i < heads + shape.n_head_kv * record.query_blocks; ++i) {
    const std::int32_t* set = record.memory + i * record.memory_stride;
    for (std::int64_t entry = record.memory_count; entry < record.memory_stride; ++entry) {
      RC_ASSERT(set[entry] == -1);  // MEM-4, SEL-8
    }
    chunk.sets.emplace_back(set, set + record.memory_count);
  }
  for (std::int64_t head = 0; head < heads; ++head) {
    const float* inter = record.colsum_inter + head * record.memory_stride;
    const float* intra = record.colsum_intra + head * record.row_stride;
    chunk.inter.emplace_back(inter, inter + record.memory_count);
    chunk.intra.emplace_back(intra, intra + length);
  }
  return chunk;
}

std::vector<std::byte> stored_as(DType type, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * dtype_size(type));
  for (std::size_t i = 0; i < values.size(); ++i)
    conformance::store_element(type, values[i], bytes.data() + i * dtype_size(type));
  return bytes;
}

}  // namespace

std::vector<float> coarse_rows(std::int64_t count) {
  std::vector<float> rows = random_rows(count);
  for (float& value : rows) value = std::round(value * 16.0f) / 16.0f;
  return rows;
}

std::vector<float> random_rows(std::int64_t count, DType type) {
  auto state = *rc::gen::arbitrary<std::uint32_t>();
  std::vector<float> rows(static_cast<std::size_t>(count));
  for (float& value : rows) {
    state = state * 1664525u + 1013904223u;
    value = conformance::round_to(type, static_cast<float>(static_cast<int>(state >> 16) - 32768) / 16384.0f);
  }
  return rows;
}

Problem draw() {
  Problem p;
  p.shape.n_head_kv = *rc::gen::inRange<std::int64_t>(1, 3);
  p.shape.n_head = p.shape.n_head_kv * *rc::gen::inRange<std::int64_t>(1, 4);
  p.shape.d_head = *rc::gen::inRange<std::int64_t>(1, 20);
  p.shape.d_value = *rc::gen::inRange<std::int64_t>(1, 20);
  p.shape.kv_type = *rc::gen::element(DType::f32, DType::f16, DType::bf16);
  p.n = *rc::gen::inRange<std::int64_t>(1, 90);
  p.shape.capacity = p.n;
  p.options.chunk = *rc::gen::inRange<std::int64_t>(1, 40);
  p.options.batch = p.options.chunk * *rc::gen::inRange<std::int64_t>(1, 4);
  p.options.local = *rc::gen::inRange<std::int64_t>(0, 12);
  p.options.heavy = *rc::gen::inRange<std::int64_t>(0, 12);
  p.options.clamp = *rc::gen::arbitrary<bool>();
  p.options.threads = *rc::gen::inRange(1, 3);
  p.options.schedule = *rc::gen::element(Schedule::layer_major, Schedule::chunk_major);
  p.options.score_type = *rc::gen::element(ScoreType::bf16, ScoreType::f32);
  if (*rc::gen::arbitrary<bool>()) p.options.softcap = 3.0;
  if (*rc::gen::arbitrary<bool>()) p.options.sinks.assign(static_cast<std::size_t>(p.shape.n_head), 0.25f);
  if (*rc::gen::arbitrary<bool>()) p.options.alibi.assign(static_cast<std::size_t>(p.shape.n_head), 0.0625f);
  draw_rows(p);
  return p;
}

void draw_rule(const Engine& engine, Options& options) {
  options.select = *rc::gen::elementOf(conformance::rules(engine));
  options.query_block = std::min<std::int64_t>(2, options.chunk);
  options.least_weight = *rc::gen::element(0.0, 0.1, 0.9);
  if (options.select != Select::blocks) return;
  options.key_block = std::min<std::int64_t>(3, options.chunk);
  options.pool = options.query_block;
  options.heavy *= options.key_block;
}

void draw_rows(Problem& p) {
  const DType type = p.shape.kv_type;
  p.q = random_rows(p.n * p.shape.n_head * p.shape.d_head, type);
  p.k = random_rows(p.n * p.shape.n_head_kv * p.shape.d_head, type);
  p.v = random_rows(p.n * p.shape.n_head_kv * p.shape.d_value, type);
}

bool Result::same_bits(const Result& other) const {
  const auto same_chunk = [](const SeenChunk& a, const SeenChunk& b) {
    return a.chunk.begin == b.chunk.begin && a.chunk.end == b.chunk.end && a.chunk.mode == b.chunk.mode &&
           same(a.sets, b.sets) && same(a.inter, b.inter) && same(a.intra, b.intra);
  };
  return same(out, other.out) && same(scores, other.scores) &&
         std::equal(chunks.begin(), chunks.end(), other.chunks.begin(), other.chunks.end(), same_chunk);
}

bool Result::same_sets(const Result& other) const {
  return std::equal(chunks.begin(), chunks.end(), other.chunks.begin(), other.chunks.end(),
                    [](const SeenChunk& a, const SeenChunk& b) { return a.sets == b.sets; });
}

namespace {

/// Rows [0, tokens) of a problem in pages that lie the other way round, other ones for each call (ROWS-1).
struct PagedRows {
  PagedRows(const Problem& p, std::int64_t tokens) {
    const Shape& s = p.shape;
    view.rows = tokens;
    view.page_rows = 1 + tokens * 7 % 20;
    view.pages = view.table_size = (tokens + view.page_rows - 1) / view.page_rows;
    for (std::int64_t page = view.pages; page > 0; --page)
      table.push_back(static_cast<std::int32_t>(page - 1));
    view.table = table.data();
    const auto place = [&](const std::vector<float>& from, std::int64_t row, std::int64_t& page_stride) {
      page_stride = view.page_rows * row;
      std::vector<float> to(static_cast<std::size_t>(view.pages * page_stride), 99.0f);
      for (std::int64_t t = 0; t < tokens; ++t) {
        const std::int64_t page = view.pages - 1 - t / view.page_rows;
        std::copy_n(from.begin() + t * row, row, to.begin() + page * page_stride + t % view.page_rows * row);
      }
      return stored_as(s.kv_type, to);
    };
    view.key_row_stride = s.n_head_kv * (view.key_head_stride = s.d_head);
    view.value_row_stride = s.n_head_kv * (view.value_head_stride = s.d_value);
    keys = place(p.k, view.key_row_stride, view.key_page_stride);
    values = place(p.v, view.value_row_stride, view.value_page_stride);
    view.keys = keys.data();
    view.values = values.data();
  }
  std::vector<std::int32_t> table;
  std::vector<std::byte> keys, values;
  StoredRows view;
};

}  // namespace

void attend_step(Session& session, const Problem& p, const Step& step, std::vector<float>& out) {
  const Shape& s = p.shape;
  const std::int64_t first = session.tokens();
  const auto part = [&](const std::vector<float>& from, std::int64_t row) {
    const auto begin = from.begin() + first * row;
    return stored_as(s.kv_type, {begin, begin + step.n * row});
  };
  const std::vector<std::byte> q = part(p.q, s.n_head * s.d_head);
  const Rows queries = Rows::token_major(q.data(), s.kv_type, s.n_head, s.d_head);
  const MutableRows to =
      MutableRows::token_major(out.data() + first * s.n_head * s.d_value, DType::f32, s.n_head, s.d_value);
  session.begin(step);
  if (session.options().kv_owner == KvOwner::caller) {
    session.attend_stored(0, queries, PagedRows(p, first + step.n).view, to);
    return;
  }
  const std::vector<std::byte> k = part(p.k, s.n_head_kv * s.d_head);
  const std::vector<std::byte> v = part(p.v, s.n_head_kv * s.d_value);
  session.attend(0, queries, Rows::token_major(k.data(), s.kv_type, s.n_head_kv, s.d_head),
                 Rows::token_major(v.data(), s.kv_type, s.n_head_kv, s.d_value), to);
}

void take_step(Session& session, const Problem& p, const Step& step, std::vector<float>& out) {
  attend_step(session, p, step, out);
  session.end();
}

Result run(const Engine& engine, const Problem& p, const std::vector<Step>& steps,
           const AfterStep& after_step, bool observed) {
  const auto session = engine.open(p.shape, p.options);
  const Shape& s = p.shape;
  Result result;
  result.out.resize(static_cast<std::size_t>(p.n * s.n_head * s.d_value));
  if (observed) {
    session->set_observer([&](const ChunkRecord& record) { result.chunks.push_back(seen(record, s)); });
  }
  for (const Step& step : steps) {
    take_step(*session, p, step, result.out);
    if (after_step) after_step(scores_of(*session), session->tokens());
  }
  result.scores = scores_of(*session);
  return result;
}

Result run(const Engine& engine, const Problem& p) { return run(engine, p, {Step::prefill(p.n)}); }

std::vector<Step> call_per_chunk(const Problem& p) {
  std::vector<Step> steps;
  for (std::int64_t done = 0; done < p.n; done += p.options.chunk) {
    steps.push_back(Step::prefill(std::min(p.options.chunk, p.n - done), done == 0 ? p.n : 0));
  }
  return steps;
}

Bounds bounds_of(const Engine& engine, const Problem& p, const Result& result) {
  const Shape& s = p.shape;
  conformance::Problem problem;
  problem.shape = s;
  problem.options = p.options;
  problem.q_type = problem.k_type = problem.v_type = s.kv_type;
  problem.steps = {Step::prefill(p.n)};
  problem.make_tensors();
  problem.layers[0].q.values = p.q;
  problem.layers[0].k.values = p.k;
  problem.layers[0].v.values = p.v;
  const conformance::Arithmetic arithmetic = conformance::arithmetic_of(engine, s.kv_type, s.kv_type);
  Bounds bounds;
  bounds.out.resize(result.out.size());
  for (const SeenChunk& seen : result.chunks) {
    conformance::ChunkTrace chunk;
    chunk.chunk = seen.chunk;
    chunk.memory_count = seen.count;
    for (const auto& set : seen.sets) chunk.memory.insert(chunk.memory.end(), set.begin(), set.end());
    Bounds::Chunk& sums = bounds.chunks.emplace_back();
    for (std::int64_t head = 0; head < s.n_head; ++head) {
      const conformance::HeadTruth truth =
          conformance::eigen_oracle(conformance::head_chunk(problem, 0, chunk, head), arithmetic);
      for (std::int64_t i = 0; i < chunk.length(); ++i) {
        const std::int64_t row = ((seen.chunk.begin + i) * s.n_head + head) * s.d_value;
        for (std::int64_t x = 0; x < s.d_value; ++x) {
          bounds.out[static_cast<std::size_t>(row + x)] =
              truth.out_bound(i, x) + 0x1p-24 * (std::fabs(truth.out(i, x)) + truth.out_bound(i, x)) +
              0x1p-150;
        }
      }
      if (seen.intra.empty()) continue;
      sums.intra.emplace_back(truth.intra_bound.begin(), truth.intra_bound.end());
      sums.inter.emplace_back(truth.inter_bound.begin(), truth.inter_bound.end());
    }
  }
  return bounds;
}

bool close(const std::vector<float>& a, const std::vector<double>& bound_a, const std::vector<float>& b,
           const std::vector<double>& bound_b) {
  RC_ASSERT(a.size() == b.size() && a.size() == bound_a.size() && a.size() == bound_b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(difference <= bound_a[i] + bound_b[i])) return false;
  }
  return true;
}

}  // namespace headwater::fuzz
