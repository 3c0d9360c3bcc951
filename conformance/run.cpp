#include "conformance/run.hpp"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <type_traits>

#include <fmt/format.h>

#include "conformance/case.hpp"
#include "conformance/formats.hpp"
#include "conformance/replay.hpp"
#include "headwater/error.hpp"

namespace headwater::conformance {
namespace {

[[noreturn]] void violated(std::string what) { throw Violation(std::move(what)); }

std::string where(const ChunkRecord& record) {
  return fmt::format("layer {} chunk [{}, {})", record.layer, record.chunk.begin, record.chunk.end);
}

void check_inputs(const Placed& q, const Placed& k, const Placed& v, const Placed& out) {
  q.check("q");
  k.check("k");
  v.check("v");
  out.check("out");
}

/// chunks() is the plans of all steps, one after the other.
void require_chunks(const Session& session, const std::vector<Chunk>& planned) {
  const std::span<const Chunk> chunks = session.chunks();
  const auto same = [](const Chunk& a, const Chunk& b) {
    return a.begin == b.begin && a.end == b.end && a.mode == b.mode;
  };
  if (!std::equal(chunks.begin(), chunks.end(), planned.begin(), planned.end(), same)) {
    violated(fmt::format("chunks() are {}, not the {} of all steps so far", chunks.size(), planned.size()));
  }
}

}  // namespace

namespace {

// Rules `blocks` and `sketches`: sizes and votes of a sparse chunk.
void copy_votes(const ChunkRecord& record, std::int64_t heads_kv, std::int64_t query_block,
                ChunkTrace& trace) {
  const std::int64_t n = record.chunk.end - record.chunk.begin;
  const std::int64_t wanted = (n + query_block - 1) / query_block;
  if (record.query_blocks != wanted) {
    violated(fmt::format("{}: SEL-4: {} query blocks of {} rows in {} rows, not {}", where(record),
                         record.query_blocks, query_block, n, wanted));
  }
  const bool votes_match = (record.candidate_blocks > 0) == (record.block_votes != nullptr) &&
                           (record.voted_tokens > 0) == (record.token_votes != nullptr);
  if (record.candidate_blocks < 0 || record.voted_tokens < 0 || !votes_match) {
    violated(fmt::format("{}: malformed votes: {} blocks{}, {} tokens{}", where(record),
                         record.candidate_blocks, record.block_votes == nullptr ? " (null)" : "",
                         record.voted_tokens, record.token_votes == nullptr ? " (null)" : ""));
  }
  trace.query_block = query_block;
  trace.query_blocks = record.query_blocks;
  trace.candidate_blocks = record.candidate_blocks;
  trace.voted_tokens = record.voted_tokens;
  const std::int64_t sets = heads_kv * record.query_blocks;
  if (record.block_votes != nullptr) {
    trace.block_votes.assign(record.block_votes, record.block_votes + sets * record.candidate_blocks);
  }
  if (record.token_votes != nullptr) {
    trace.token_votes.assign(record.token_votes, record.token_votes + sets * record.voted_tokens);
  }
}

}  // namespace

ChunkTrace copy_record(const ChunkRecord& record, std::int64_t heads, std::int64_t heads_kv,
                       std::int64_t query_block) {
  ChunkTrace trace;
  trace.chunk = record.chunk;
  trace.memory_count = record.memory_count;
  const std::int64_t n = record.chunk.end - record.chunk.begin;
  if (n < 1 || record.lse == nullptr || record.row_stride < n) {
    violated(
        fmt::format("{}: malformed record: length {}, row_stride {}", where(record), n, record.row_stride));
  }
  const bool sparse = record.chunk.mode == ChunkMode::sparse;
  const bool blocks = sparse && query_block > 0;
  const bool summed = sparse && !blocks;
  if (!sparse && record.memory_count != 0) {
    violated(fmt::format("{}: a dense or decode chunk reports memory", where(record)));
  }
  if (!summed && (record.colsum_intra != nullptr || record.colsum_inter != nullptr)) {
    violated(
        fmt::format("{}: {} column sums", where(record),
                    blocks ? "SEL-9: a chunk of query blocks reports" : "a dense or decode chunk reports"));
  }
  if (summed && record.colsum_intra == nullptr) violated(where(record) + ": no column sums reported");
  if (record.memory_count < 0 || record.memory_count > record.memory_stride ||
      (record.memory_count > 0 && (record.memory == nullptr || (summed && record.colsum_inter == nullptr)))) {
    violated(fmt::format("{}: malformed memory: count {}, stride {}", where(record), record.memory_count,
                         record.memory_stride));
  }
  if (blocks) {
    copy_votes(record, heads_kv, query_block, trace);
  } else if (record.query_blocks != 0 || record.candidate_blocks != 0 || record.voted_tokens != 0 ||
             record.block_votes != nullptr || record.token_votes != nullptr) {
    violated(where(record) +
             ": reports votes, which are those of sparse chunks of rules blocks and sketches");
  }
  for (std::int64_t h = 0; h < heads; ++h) {
    trace.lse.insert(trace.lse.end(), record.lse + h * record.row_stride,
                     record.lse + h * record.row_stride + n);
    if (!summed) continue;
    const float* intra = record.colsum_intra + h * record.row_stride;
    trace.colsum_intra.insert(trace.colsum_intra.end(), intra, intra + n);
  }
  if (!sparse || record.memory == nullptr || record.memory_stride == 0) return trace;
  const std::int64_t sets = blocks ? heads_kv * record.query_blocks : heads;
  for (std::int64_t s = 0; s < sets; ++s) {
    const std::int32_t* memory = record.memory + s * record.memory_stride;
    trace.memory.insert(trace.memory.end(), memory, memory + record.memory_count);
    for (std::int64_t i = record.memory_count; i < record.memory_stride; ++i) {
      if (memory[i] != -1) {
        violated(fmt::format("{}: {}: entry {} of set {} after its end is {}, not -1", where(record),
                             blocks ? "SEL-8" : "MEM-4", i, s, memory[i]));
      }
    }
    if (record.colsum_inter == nullptr) continue;
    const float* inter = record.colsum_inter + s * record.memory_stride;
    trace.colsum_inter.insert(trace.colsum_inter.end(), inter, inter + record.memory_count);
    for (std::int64_t i = record.memory_count; i < record.memory_stride; ++i) {
      if (inter[i] != 0.0f) {
        violated(fmt::format("{}: column sum {} of head {} after the set is {}, not 0", where(record), i, s,
                             inter[i]));
      }
    }
  }
  return trace;
}

Snapshot snapshot(const Session& session, std::int64_t layer) {
  Snapshot shot;
  const std::int64_t heads = session.shape().n_head;
  const std::int64_t tokens = session.tokens();
  const ScoreView scores = session.scores(layer);
  // Where no scores are formed, all heads may share a row of zeros.
  const bool formed = session.options().sparse && session.options().select == Select::h2o;
  const bool stride = scores.head_stride == session.shape().capacity || (!formed && scores.head_stride == 0);
  if (scores.type != session.options().score_type || scores.data == nullptr || !stride) {
    violated(fmt::format("layer {}: score view: type {} head_stride {}, capacity {}", layer,
                         static_cast<int>(scores.type), scores.head_stride, session.shape().capacity));
  }
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t p = 0; p < tokens; ++p) {
      const std::int64_t at = h * scores.head_stride + p;
      std::uint32_t bits = 0;
      if (scores.type == ScoreType::bf16) {
        bits = static_cast<const std::uint16_t*>(scores.data)[at];
      } else {
        std::memcpy(&bits, static_cast<const float*>(scores.data) + at, sizeof bits);
      }
      shot.scores.push_back(bits);
    }
  }
  const MemoryView memory = session.memory(layer);
  // SEL-9: the view is empty with any rule but h2o; it may still have room, all of it -1.
  const bool empty = session.options().select != Select::h2o && memory.width == 0;
  const std::int64_t width = empty ? 0 : std::min(session.options().memory(), session.shape().capacity);
  if (memory.width != width || memory.count < 0 || memory.count > width ||
      (memory.count > 0 && (memory.data == nullptr || memory.head_stride < width))) {
    violated(fmt::format("layer {}: memory view: width {} (wanted {}), count {}, head_stride {}", layer,
                         memory.width, width, memory.count, memory.head_stride));
  }
  shot.memory_count = memory.count;
  if (memory.data == nullptr || width == 0) return shot;
  for (std::int64_t h = 0; h < heads; ++h) {
    const std::int32_t* set = memory.data + h * memory.head_stride;
    shot.memory.insert(shot.memory.end(), set, set + memory.count);
    for (std::int64_t i = memory.count; i < width; ++i) {
      if (set[i] != -1) {
        violated(fmt::format("layer {}: MEM-4: entry {} of head {} after {} valid ones is {}, not -1", layer,
                             i, h, memory.count, set[i]));
      }
    }
  }
  return shot;
}

namespace {

std::int64_t tokens_of(const Problem& problem, std::size_t steps) {
  std::int64_t tokens = 0;
  for (std::size_t s = 0; s < steps; ++s) tokens += problem.steps[s].n;
  return tokens;
}

}  // namespace

Trace run_steps(Session& session, const Problem& problem, std::size_t first_step, std::size_t last_step,
                const RunStyle& style) {
  const std::int64_t n_layer = problem.shape.n_layer;
  const std::int64_t heads = problem.shape.n_head;
  Trace trace;
  trace.layers.resize(static_cast<std::size_t>(n_layer));
  std::int64_t attending = -1;
  const Observer observer = [&](const ChunkRecord& record) {
    if (record.layer != attending) {
      violated(fmt::format("{}: observed while layer {} is attended", where(record), attending));
    }
    if (record.memory_count != session.memory_count(record.chunk)) {
      violated(fmt::format("{}: memory_count() of the chunk is {}, that of its record {}", where(record),
                           session.memory_count(record.chunk), record.memory_count));
    }
    const Options& options = problem.options;
    const std::int64_t query_block = options.select != Select::h2o ? options.query_block : 0;
    trace.layers[static_cast<std::size_t>(attending)].chunks.push_back(
        copy_record(record, heads, problem.shape.n_head_kv, query_block));
  };
  if (style.observed) session.set_observer(observer);
  std::vector<std::int64_t> order = style.layer_order;
  for (std::int64_t layer = 0; order.size() < static_cast<std::size_t>(n_layer); ++layer)
    order.push_back(layer);

  std::vector<Chunk> planned(session.chunks().begin(), session.chunks().end());
  std::int64_t first = session.tokens();
  if (first != tokens_of(problem, first_step)) {
    violated(fmt::format("the session holds {} tokens, not the {} of {} steps", first,
                         tokens_of(problem, first_step), first_step));
  }
  for (std::size_t s = first_step; s < last_step; ++s) {
    const Step& step = problem.steps[s];
    session.begin(step);
    const std::span<const Chunk> plan = session.plan();
    trace.plans.emplace_back(plan.begin(), plan.end());
    planned.insert(planned.end(), plan.begin(), plan.end());
    require_chunks(session, planned);
    for (const std::int64_t layer : order) {
      const LayerInput& input = problem.layers[static_cast<std::size_t>(layer)];
      const Placed q(style.placement, input.q, first, step.n);
      const Placed k(style.placement, input.k, first, step.n);
      const Placed v(style.placement, input.v, first, step.n);
      Placed out(style.placement, problem.out_type, step.n, heads, problem.layer_shape(layer).d_value);
      std::optional<Placed> lse;
      LseOutput wanted;
      if (style.lse) {  // floats lie at multiples of four bytes
        lse.emplace(style.placement == Placement::unaligned ? Placement::token_major : style.placement,
                    DType::f32, step.n, heads, 1);
        const MutableRows rows = lse->mutable_rows();
        wanted = {static_cast<float*>(rows.data), rows.row_stride, rows.head_stride};
      }
      attending = layer;
      session.attend(layer, q.rows(), k.rows(), v.rows(), out.mutable_rows(), wanted);
      attending = -1;
      check_inputs(q, k, v, out);
      LayerTrace& said = trace.layers[static_cast<std::size_t>(layer)];
      const auto append = [](std::vector<float>& to, const std::vector<float>& values) {
        to.insert(to.end(), values.begin(), values.end());
      };
      append(said.out, out.take());
      if (!lse) continue;
      lse->check("lse");
      append(said.lse, lse->take());
    }
    if (session.tokens() != first) violated("tokens() counts the open step");
    session.end();
    first += step.n;
    if (session.tokens() != first) {
      violated(fmt::format("tokens() is {} after {} tokens", session.tokens(), first));
    }
    require_chunks(session, planned);
    const SessionState wanted =
        step.kind == Step::Kind::decode ? SessionState::decoding : SessionState::prefilling;
    if (session.state() != wanted) {
      violated(fmt::format("STATE-1: state {} after a step of kind {}", static_cast<int>(session.state()),
                           static_cast<int>(step.kind)));
    }
    if (!style.snapshots) continue;
    for (std::int64_t layer = 0; layer < n_layer; ++layer) {
      trace.layers[static_cast<std::size_t>(layer)].snapshots.push_back(snapshot(session, layer));
    }
  }
  session.set_observer({});
  return trace;
}

Trace run(Session& session, const Problem& problem, const RunStyle& style) {
  return run_steps(session, problem, 0, problem.steps.size(), style);
}

Trace trace_of_steps(const Trace& trace, const Problem& problem, std::size_t first, std::size_t last) {
  const std::int64_t begin = tokens_of(problem, first);
  const std::int64_t end = tokens_of(problem, last);
  const auto cut = [](const auto& all, std::int64_t from, std::int64_t to) {
    return all.empty() ? all : std::decay_t<decltype(all)>(all.begin() + from, all.begin() + to);
  };
  Trace part;
  const auto step = [](std::size_t s) { return static_cast<std::int64_t>(s); };
  part.plans = cut(trace.plans, step(first), step(last));
  for (const LayerTrace& whole : trace.layers) {
    LayerTrace& layer = part.layers.emplace_back();
    const std::int64_t heads = problem.shape.n_head;
    const std::int64_t row = problem.out_row(std::ssize(part.layers) - 1);
    layer.out = cut(whole.out, begin * row, end * row);
    layer.lse = cut(whole.lse, begin * heads, end * heads);
    layer.snapshots = cut(whole.snapshots, step(first), step(last));
    std::copy_if(whole.chunks.begin(), whole.chunks.end(), std::back_inserter(layer.chunks),
                 [&](const ChunkTrace& seen) { return seen.chunk.begin >= begin && seen.chunk.end <= end; });
  }
  return part;
}

namespace {

// Throws Skipped where the engine refuses these options with invalid_argument and these words.
void require_taken(const Engine& engine, Options options, const char* words, const char* what) {
  Shape shape;
  shape.capacity = 1;
  options.threads = 1;
  try {
    (void)engine.open(shape, options);
  } catch (const Error& error) {
    const std::string message = error.what();
    if (error.code() != ErrorCode::invalid_argument || message.find(words) == std::string::npos) throw;
    throw Skipped(fmt::format("no {}: {}", what, message));
  }
}

}  // namespace

void require_rule_blocks(const Engine& engine) {
  Options options;
  options.select = Select::blocks;
  require_taken(engine, options, "has no other rule", "rule blocks");
}

void require_rule_sketches(const Engine& engine) {
  Options options;
  options.select = Select::sketches;
  require_taken(engine, options, "2 (sketches)", "rule sketches");
}

void require_rule(const Engine& engine, Select rule) {
  if (rule == Select::blocks) require_rule_blocks(engine);
  if (rule == Select::sketches) require_rule_sketches(engine);
}

void require_pinned(const Engine& engine) {
  Options options;
  options.pinned = 1;
  require_taken(engine, options, "pins no tokens", "pinned tokens");
}

void require_refused(const Engine& engine, const Shape& shape, const Options& options,
                     const std::string& field, const std::string& value) {
  try {
    (void)engine.open(shape, options);
  } catch (const Error& error) {
    const std::string message = error.what();
    const bool named = message.find(field) != std::string::npos && message.find(value) != std::string::npos;
    if (error.code() == ErrorCode::invalid_argument && named && message.find('\n') == std::string::npos)
      return;
    violated(fmt::format(
        "{} = {}: refused with code {}: {}; wanted: invalid_argument, one line that names field and value",
        field, value, static_cast<int>(error.code()), message));
  }
  violated(fmt::format("{} = {} was accepted", field, value));
}

void broken(const std::string& what, const Problem& problem) {
  violated(fmt::format("{}; {}", what, problem.describe()));
}

Trace run(const Engine& engine, const Problem& problem, const RunStyle& style) {
  const std::unique_ptr<Session> session = engine.open(problem.shape, problem.options);
  return run(*session, problem, style);
}

Trace replayed(const Engine& engine, const Problem& problem, const RunStyle& style) {
  try {
    Trace trace = run(engine, problem, style);
    require_replay(problem, trace);
    return trace;
  } catch (const Violation& violation) {
    broken(violation.what(), problem);
  }
}

namespace {

void require_same_floats(const std::vector<float>& a, const std::vector<float>& b, const std::string& what) {
  if (a.size() != b.size()) violated(fmt::format("{}: {} values against {}", what, a.size(), b.size()));
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!same_bits(a[i], b[i]))
      violated(fmt::format("{}: value {}: {:.9g} against {:.9g}", what, i, a[i], b[i]));
  }
}

}  // namespace

void require_same(const Trace& a, const Trace& b, const std::string& what, bool outputs) {
  if (a.layers.size() != b.layers.size()) violated(what + ": different numbers of layers");
  for (std::size_t layer = 0; layer < a.layers.size(); ++layer) {
    const LayerTrace& x = a.layers[layer];
    const LayerTrace& y = b.layers[layer];
    const std::string at = fmt::format("{}: layer {}", what, layer);
    if (x.chunks.size() != y.chunks.size()) {
      violated(fmt::format("{}: {} chunks against {}", at, x.chunks.size(), y.chunks.size()));
    }
    for (std::size_t c = 0; c < x.chunks.size(); ++c) {
      const ChunkTrace& s = x.chunks[c];
      const ChunkTrace& t = y.chunks[c];
      const std::string chunk = fmt::format("{} chunk {}", at, c);
      if (s.chunk.begin != t.chunk.begin || s.chunk.end != t.chunk.end || s.chunk.mode != t.chunk.mode) {
        violated(fmt::format("{}: [{}, {}) against [{}, {})", chunk, s.chunk.begin, s.chunk.end,
                             t.chunk.begin, t.chunk.end));
      }
      require_same_floats(s.block_votes, t.block_votes, chunk + " block_votes");
      require_same_floats(s.token_votes, t.token_votes, chunk + " token_votes");
      if (s.memory_count != t.memory_count || s.memory != t.memory) violated(chunk + ": memory sets differ");
      require_same_floats(s.colsum_inter, t.colsum_inter, chunk + " colsum_inter");
      require_same_floats(s.colsum_intra, t.colsum_intra, chunk + " colsum_intra");
      if (outputs) require_same_floats(s.lse, t.lse, chunk + " lse");
    }
    if (!x.snapshots.empty() && !y.snapshots.empty()) {
      if (x.snapshots.back().scores != y.snapshots.back().scores) violated(at + ": final scores differ");
      if (x.snapshots.back().memory != y.snapshots.back().memory) violated(at + ": final memory sets differ");
    }
    if (outputs) require_same_floats(x.out, y.out, at + " out");
    if (outputs && !x.lse.empty() && !y.lse.empty()) require_same_floats(x.lse, y.lse, at + " lse");
  }
}

}  // namespace headwater::conformance
