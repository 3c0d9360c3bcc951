#include "conformance/session_checks.hpp"

#include <algorithm>
#include <span>

#include <fmt/format.h>

#include "conformance/case.hpp"
#include "conformance/formats.hpp"
#include "conformance/placed.hpp"

namespace headwater::conformance {
namespace {

const char* code_name(const std::optional<ErrorCode>& code) {
  if (!code) return "success";
  switch (*code) {
    case ErrorCode::invalid_argument: return "invalid_argument";
    case ErrorCode::wrong_state: return "wrong_state";
    case ErrorCode::capacity_exceeded: return "capacity_exceeded";
    case ErrorCode::internal: return "internal";
    case ErrorCode::interrupted: return "interrupted";
    case ErrorCode::unsupported: return "unsupported";
    default: return "another error";
  }
}

bool same_chunks(const std::vector<Chunk>& a, const std::vector<Chunk>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Chunk& x, const Chunk& y) {
    return x.begin == y.begin && x.end == y.end && x.mode == y.mode;
  });
}

// T of the turn that the steps end in.
std::int64_t turn_length(const std::vector<Step>& steps) {
  std::size_t first = steps.size() - 1;
  while (first > 0 && steps[first - 1].kind == Step::Kind::prefill) --first;
  return steps[first].turn_length != 0 ? steps[first].turn_length : steps[first].n;
}

std::string shown(const std::vector<Chunk>& chunks) {
  std::string text;
  for (const Chunk& chunk : chunks)
    text += fmt::format(" [{}, {}) mode {}", chunk.begin, chunk.end, static_cast<int>(chunk.mode));
  return text;
}

}  // namespace

std::optional<ErrorCode> code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    const std::string message = error.what();
    if (message.empty() || message.find('\n') != std::string::npos)
      throw Violation("an error message is not one line");
    return error.code();
  }
  return std::nullopt;
}

void require_code(const std::optional<ErrorCode>& got, const std::optional<ErrorCode>& wanted,
                  const std::string& what) {
  if (got != wanted) throw Violation(fmt::format("{}: {}, not {}", what, code_name(got), code_name(wanted)));
}

void require_claim(const Engine& engine, bool Claims::*claim, const char* name) {
  if (!(engine.claims().*claim))
    throw Skipped(fmt::format("the engine does not claim it (Claims::{})", name));
}

bool pins(const Engine& engine) {
  try {
    require_pinned(engine);
    return true;
  } catch (const Skipped&) {
    return false;
  }
}

std::vector<Select> rules(const Engine& engine) {
  std::vector<Select> had;
  for (const Select rule : {Select::h2o, Select::blocks, Select::sketches}) {
    try {
      require_rule(engine, rule);
      had.push_back(rule);
    } catch (const Skipped&) {
    }
  }
  return had;
}

Problem session_problem(Random& random, const Engine& engine, Select rule, const Variety& variety) {
  Problem problem = random_problem(random, variety);
  Options& options = problem.options;
  if (!options.dense && random.chance(0.8)) options.heavy += 1;
  problem = with_rule(random, std::move(problem), rule);
  if (random.chance(0.4) && pins(engine)) choose_pinned(random, options);
  if (random.chance(0.3)) choose_dense_below(random, problem);
  if (random.chance(0.4)) choose_dense_layers(random, problem);
  if (problem.shape.n_layer > 1 && engine.claims().layers && random.chance(0.3)) {
    choose_widths(random, problem);
  }
  if (engine.claims().truncate) options.checkpoints = random.pick(std::vector<std::int64_t>{0, 1, 2, 5});
  return problem;
}

void draw_rows_from(Random& random, Problem& problem, std::int64_t first) {
  Problem other = problem;
  other.steps = {Step::prefill(problem.shape.capacity)};
  other.fill_normal(random);
  for (std::size_t l = 0; l < problem.layers.size() && first > 0; ++l) {
    const auto keep = [&](const Tensor& from, Tensor& to) {
      std::copy(from.values.begin(), from.values.begin() + first * from.heads * from.width,
                to.values.begin());
    };
    keep(problem.layers[l].q, other.layers[l].q);
    keep(problem.layers[l].k, other.layers[l].k);
    keep(problem.layers[l].v, other.layers[l].v);
  }
  problem.layers = std::move(other.layers);
}

std::vector<float> attend_layer(Session& session, const Problem& from, std::int64_t layer, std::int64_t n,
                                const LseOutput& lse) {
  const LayerInput& input = from.layers[static_cast<std::size_t>(layer)];
  const std::int64_t first = session.tokens();
  const Placed q(Placement::token_major, input.q, first, n);
  const Placed k(Placement::token_major, input.k, first, n);
  const Placed v(Placement::token_major, input.v, first, n);
  Placed out(Placement::token_major, from.out_type, n, from.shape.n_head, from.layer_shape(layer).d_value);
  session.attend(layer, q.rows(), k.rows(), v.rows(), out.mutable_rows(), lse);
  return out.take();
}

Picture picture(const Session& session, std::int64_t stride) {
  Picture seen{session.state(), session.tokens(), session.failed(), {}, {}, {}, {}};
  seen.chunks.assign(session.chunks().begin(), session.chunks().end());
  seen.plan.assign(session.plan().begin(), session.plan().end());
  const Shape& shape = session.shape();
  for (std::int64_t layer = 0; layer < shape.n_layer; ++layer) {
    const Shape own = session.options().shape_of(shape, layer);
    std::vector<float> key(static_cast<std::size_t>(own.d_head));
    std::vector<float> value(static_cast<std::size_t>(own.d_value));
    seen.layers.push_back(snapshot(session, layer));
    for (std::int64_t head = 0; head < shape.n_head_kv; ++head) {
      for (std::int64_t t = seen.tokens > 0 ? (seen.tokens - 1) % stride : 0; t < seen.tokens; t += stride) {
        session.read_key(layer, head, t, key);
        session.read_value(layer, head, t, value);
        seen.rows.insert(seen.rows.end(), key.begin(), key.end());
        seen.rows.insert(seen.rows.end(), value.begin(), value.end());
      }
    }
  }
  return seen;
}

void require_same(const Picture& a, const Picture& b, const std::string& what) {
  const auto differ = [&](const std::string& text) { throw Violation(what + ": " + text); };
  if (a.tokens != b.tokens) differ(fmt::format("{} tokens against {}", a.tokens, b.tokens));
  if (a.failed != b.failed) differ("failed() against not failed()");
  if (a.state != b.state)
    differ(fmt::format("state {} against {}", static_cast<int>(a.state), static_cast<int>(b.state)));
  if (!same_chunks(a.chunks, b.chunks))
    differ(fmt::format("chunks{} against{}", shown(a.chunks), shown(b.chunks)));
  if (!same_chunks(a.plan, b.plan)) differ(fmt::format("plan{} against{}", shown(a.plan), shown(b.plan)));
  for (std::size_t layer = 0; layer < a.layers.size(); ++layer) {
    const Snapshot& x = a.layers[layer];
    const Snapshot& y = b.layers[layer];
    if (x.memory_count != y.memory_count || x.memory != y.memory)
      differ(
          fmt::format("memory sets of layer {} ({} and {} entries)", layer, x.memory_count, y.memory_count));
    const auto [p, r] = std::mismatch(x.scores.begin(), x.scores.end(), y.scores.begin(), y.scores.end());
    if (p == x.scores.end() && r == y.scores.end()) continue;
    differ(fmt::format("scores of layer {}, from number {} of {}", layer, p - x.scores.begin(),
                       x.scores.size()));
  }
  const bool rows = std::equal(a.rows.begin(), a.rows.end(), b.rows.begin(), b.rows.end(), same_bits);
  if (!rows) differ("stored rows");
}

std::vector<Step> first_tokens(const std::vector<Step>& steps, std::int64_t n) {
  std::vector<Step> kept;
  bool in_turn = false;
  for (const Step& step : steps) {
    if (n == 0) break;
    Step& part = kept.emplace_back(step);
    const bool prefill = step.kind == Step::Kind::prefill;
    if (prefill && !in_turn && step.turn_length == 0) part.turn_length = step.n;
    part.n = std::min(step.n, n);
    n -= part.n;
    in_turn = prefill;
  }
  return kept;
}

Lengths::Lengths(const EffectiveOptions& options)
    : bound_(options.sparse && options.select == Select::h2o), kept_(options.checkpoints) {}

void Lengths::ended(std::span<const Chunk> chunks) {
  tokens_ = chunks.back().end;
  sparse_.clear();
  std::copy_if(chunks.begin(), chunks.end(), std::back_inserter(sparse_),
               [](const Chunk& chunk) { return chunk.mode == ChunkMode::sparse; });
  const auto count = static_cast<std::int64_t>(sparse_.size());
  settled_ = std::max(settled_, static_cast<std::size_t>(std::max<std::int64_t>(0, count - kept_)));
}

void Lengths::truncated(std::int64_t n) {
  tokens_ = n;
  std::erase_if(sparse_, [&](const Chunk& chunk) { return chunk.begin >= n; });
  if (n == 0) settled_ = 0;
}

bool Lengths::possible(std::int64_t n) const {
  if (n < 0 || n > tokens_) return false;
  if (n == 0 || !bound_) return true;
  if (settled_ > 0 && n < sparse_[settled_ - 1].end) return false;
  return std::none_of(sparse_.begin(), sparse_.end(),
                      [&](const Chunk& chunk) { return chunk.begin < n && n < chunk.end; });
}

void append_steps(Random& random, const Options& options, std::vector<Step>& steps, std::int64_t left,
                  int count) {
  for (int i = 0; i < count && left > 0; ++i) {
    const bool in_turn = !steps.empty() && steps.back().kind == Step::Kind::prefill;
    if (random.chance(0.35)) {
      steps.push_back(Step::decode(random.integer(1, std::min<std::int64_t>(4, left))));
    } else {
      const std::int64_t n = random.integer(1, std::min(4 * options.chunk, left));
      std::int64_t said = 0;
      if (random.chance(0.4)) said = in_turn ? turn_length(steps) : n + random.integer(0, 9);
      steps.push_back(Step::prefill(n, said));
    }
    left -= steps.back().n;
  }
}

}  // namespace headwater::conformance
