#include "fuzz/ops.hpp"

#include <algorithm>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include "conformance/forced.hpp"
#include "conformance/placed.hpp"
#include "conformance/replay.hpp"
#include "fuzz/byte_source.hpp"
#include "headwater/headwater.hpp"

namespace headwater::fuzz {

namespace {

/// Whether every engine of this machine takes steps back (STATE-8, STATE-9).
bool takes_back() {
  const auto all = engines();
  return std::all_of(all.begin(), all.end(), [](const Engine* engine) {
    const Claims claims = engine->claims();
    return !engine->unavailable_because().empty() || (claims.abort && claims.truncate);
  });
}

conformance::Problem draw_problem(ByteSource& source) {
  conformance::Problem problem;
  Shape& shape = problem.shape;
  shape.n_layer = source.range(1, 2);
  shape.n_head_kv = source.range(1, 2);
  shape.n_head = shape.n_head_kv * source.range(1, 2);
  shape.d_head = source.range(1, 9);
  shape.d_value = source.range(1, 9);
  shape.capacity = source.range(1, 80);
  shape.kv_type = static_cast<DType>(source.range(0, 2));
  Options& options = problem.options;
  options.batch = source.range(1, 40);
  options.chunk = source.range(1, 24);
  options.local = source.range(0, 10);
  options.heavy = source.range(0, 10);
  options.clamp = source.flag();
  options.dense = source.range(0, 9) == 0;
  options.score_type = static_cast<ScoreType>(source.range(0, 1));
  options.schedule = static_cast<Schedule>(source.range(0, 1));
  options.threads = static_cast<int>(source.range(1, 2));
  if (takes_back()) options.checkpoints = source.range(0, 3);
  if (source.flag()) options.softcap = 2.0;
  if (source.flag()) options.sinks.assign(static_cast<std::size_t>(shape.n_head), 0.5f);
  if (source.flag()) options.alibi.assign(static_cast<std::size_t>(shape.n_head), 0.125f);
  // Mostly one type for all, for which engines have kernels of their own.
  const auto type = [&] { return source.flag() ? shape.kv_type : static_cast<DType>(source.range(0, 2)); };
  problem.q_type = type();
  problem.k_type = type();
  problem.v_type = type();
  problem.out_type = type();
  problem.steps = {Step::prefill(shape.capacity)};  // room for the rows of every step
  problem.make_tensors();
  return problem;
}

/// Pseudo-random numbers of a sixteenth's grain: exact in every element type.
conformance::Tensor draw_rows(ByteSource& source, DType type, std::int64_t n, std::int64_t heads,
                              std::int64_t width) {
  std::uint32_t state = 0x9E3779B9u + source.byte();
  conformance::Tensor rows(type, n, heads, width);
  for (float& value : rows.values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(static_cast<int>(state >> 24) - 128) / 64.0f;
  }
  return rows;
}

/// What one engine did since its session was empty.
struct Run {
  const Engine* engine = nullptr;
  std::unique_ptr<Session> session;
  conformance::Trace trace;                  ///< outputs so far; chunks of the latest attend() alone
  std::vector<conformance::Replay> replays;  ///< one per layer
  /// After every step that is left: tokens stored, and the replays then.
  std::vector<std::pair<std::int64_t, std::vector<conformance::Replay>>> past;
  int code = 0;  ///< of the last call: 0 or an ErrorCode

  template <typename Call>
  void call(Call&& body) {
    code = 0;
    try {
      body(*this);
    } catch (const Error& error) {
      code = static_cast<int>(error.code());
    }
  }
};

/// All engines get the same calls and must give the same codes, states and plans. What each computes is compared with
/// the spec, not with another engine, because near ties may be decided differently in another arithmetic: its sets
/// and scores are replayed bit for bit from its own column sums, and those and its outputs are within the derived
/// bounds under its own sets.
class Differential {
 public:
  explicit Differential(ByteSource source) : source_(source), problem_(draw_problem(source_)) {}

  std::string run() {
    for (const Engine* engine : engines()) {
      if (!engine->unavailable_because().empty()) continue;
      Run& run = runs_.emplace_back();
      run.engine = engine;
      run.session = engine->open(problem_.shape, problem_.options);
    }
    forget();
    for (Run& run : runs_) {
      run.session->set_observer([&run, this](const ChunkRecord& record) {
        run.trace.layers[static_cast<std::size_t>(record.layer)].chunks.push_back(
            conformance::copy_record(record, problem_.shape.n_head));
      });
    }
    constexpr int kMostCalls = 24;
    try {
      for (int call = 0; call < kMostCalls && !source_.empty() && wrong_.empty(); ++call) one_call();
    } catch (const conformance::Violation& violation) {
      wrong_ = violation.what();
    }
    return wrong_;
  }

 private:
  /// What an empty session has seen.
  void forget() {
    const Shape& shape = problem_.shape;
    const EffectiveOptions options = conformance::expected_options(shape, problem_.options);
    for (Run& run : runs_) {
      run.replays.assign(static_cast<std::size_t>(shape.n_layer), {options, shape.n_head});
      run.past = {{0, run.replays}};
      run.trace.layers.assign(static_cast<std::size_t>(shape.n_layer), {});
      for (conformance::LayerTrace& layer : run.trace.layers)
        layer.out.resize(static_cast<std::size_t>(shape.capacity * shape.n_head * shape.d_value));
    }
  }

  template <typename Body>
  int all(const char* what, Body&& body) {
    for (Run& run : runs_) run.call(body);
    for (const Run& run : runs_) {
      const Session& a = *runs_[0].session;
      const Session& b = *run.session;
      const bool plans = std::equal(a.plan().begin(), a.plan().end(), b.plan().begin(), b.plan().end(),
                                    [](const Chunk& x, const Chunk& y) {
                                      return x.begin == y.begin && x.end == y.end && x.mode == y.mode;
                                    });
      if (run.code == runs_[0].code && a.state() == b.state() && a.tokens() == b.tokens() && plans) continue;
      std::ostringstream text;
      text << what << ": " << runs_[0].engine->name() << " gives code " << runs_[0].code << ", state "
           << static_cast<int>(a.state()) << ", tokens " << a.tokens() << ", " << a.plan().size()
           << " chunks; " << run.engine->name() << " code " << run.code << ", state "
           << static_cast<int>(b.state()) << ", tokens " << b.tokens() << ", " << b.plan().size()
           << " chunks";
      wrong_ = text.str();
    }
    return runs_[0].code;
  }

  void one_call() {
    switch (source_.range(0, 10)) {
      case 10: truncate(); break;
      case 0:
        all("reset", [](Run& run) { run.session->reset(); });
        forget();
        break;
      case 1: bad_call(); break;
      case 2:
      case 3: step(Step::decode(source_.range(1, 3))); break;
      default: {
        const std::int64_t n = source_.range(1, 50);
        step(Step::prefill(n, source_.flag() ? 0 : n + source_.range(0, 30)));
      }
    }
  }

  void bad_call() {
    switch (source_.range(0, 4)) {
      case 0: all("end", [](Run& run) { run.session->end(); }); break;
      case 1: {
        const Step step = Step::prefill(source_.wide());
        if (step.n >= 1 && step.n <= problem_.shape.capacity) break;  // it might be legal
        all("huge prefill", [&](Run& run) { run.session->begin(step); });
        break;
      }
      case 2: all("empty decode", [](Run& run) { run.session->begin(Step::decode(0)); }); break;
      case 3: attend(source_.range(-1, 3)); break;
      default: all("null rows", [](Run& run) { run.session->attend(0, {}, {}, {}, {}); }); break;
    }
  }

  /// To the end of an earlier step, where STATE-10 has it.
  void truncate() {
    if (!takes_back()) return;
    const auto& past = runs_[0].past;
    const auto left = static_cast<std::size_t>(source_.range(0, std::ssize(past) - 1));
    const std::int64_t n = past[left].first;
    if (all("truncate", [&](Run& run) { run.session->truncate(n); }) != 0) return;
    for (Run& run : runs_) {
      run.past.resize(left + 1, run.past.front());
      run.replays = run.past.back().second;
    }
    require_scores();
  }

  void require_scores() const {
    for (const Run& run : runs_) {
      for (std::int64_t layer = 0; layer < problem_.shape.n_layer; ++layer) {
        run.replays[static_cast<std::size_t>(layer)].require_scores(
            conformance::snapshot(*run.session, layer).scores, where(run, layer));
      }
    }
  }

  void step(const Step& step) {
    if (all("begin", [&](Run& run) { run.session->begin(step); }) != 0) return;
    n_ = step.n;
    const bool skip_layer = source_.range(0, 15) == 0;
    for (std::int64_t layer = problem_.shape.n_layer - 1; layer >= (skip_layer ? 1 : 0) && wrong_.empty();
         --layer)
      attend(layer);
    if (takes_back() && source_.range(0, 7) == 0) {
      if (all("abort", [](Run& run) { run.session->abort(); }) != 0) return;
      for (Run& run : runs_) run.replays = run.past.back().second;
    } else {
      if (all("end", [](Run& run) { run.session->end(); }) != 0) return;
      for (Run& run : runs_) run.past.emplace_back(run.session->tokens(), run.replays);
    }
    require_scores();
  }

  static std::string where(const Run& run, std::int64_t layer) {
    return std::string(run.engine->name()) + " layer " + std::to_string(layer);
  }

  void attend(std::int64_t layer) {
    using conformance::Placed;
    using conformance::Placement;
    const Shape& shape = problem_.shape;
    const std::int64_t n = std::max<std::int64_t>(n_, 1);
    const conformance::LayerInput rows{
        draw_rows(source_, problem_.q_type, n, shape.n_head, shape.d_head),
        draw_rows(source_, problem_.k_type, n, shape.n_head_kv, shape.d_head),
        draw_rows(source_, problem_.v_type, n, shape.n_head_kv, shape.d_value)};
    const Placed q(Placement::token_major, rows.q, 0, n);
    const Placed k(Placement::token_major, rows.k, 0, n);
    const Placed v(Placement::token_major, rows.v, 0, n);
    const std::int64_t first = runs_[0].session->tokens();
    const int code = all("attend", [&](Run& run) {
      Placed out(Placement::token_major, problem_.out_type, n, shape.n_head, shape.d_value);
      for (conformance::LayerTrace& seen : run.trace.layers) seen.chunks.clear();
      run.session->attend(layer, q.rows(), k.rows(), v.rows(), out.mutable_rows());
      const std::vector<float> values = out.take();
      auto& all_rows = run.trace.layers[static_cast<std::size_t>(layer)].out;
      std::copy(values.begin(), values.end(), all_rows.begin() + first * shape.n_head * shape.d_value);
    });
    if (code != 0 || !wrong_.empty()) return;
    conformance::LayerInput& input = problem_.layers[static_cast<std::size_t>(layer)];
    const auto keep = [&](const conformance::Tensor& from, conformance::Tensor& to) {
      std::copy(from.values.begin(), from.values.end(), to.row(first, 0));
    };
    keep(rows.q, input.q);
    keep(rows.k, input.k);
    keep(rows.v, input.v);
    for (Run& run : runs_) judge(run, layer);
  }

  /// What one engine said of one layer of the open step.
  void judge(Run& run, std::int64_t layer) const {
    for (const conformance::ChunkTrace& chunk : run.trace.layers[static_cast<std::size_t>(layer)].chunks)
      run.replays[static_cast<std::size_t>(layer)].take(chunk, where(run, layer));
    conformance::Context context;
    context.engine = run.engine;
    conformance::require_forced(context, problem_, run.trace);
  }

  ByteSource source_;
  conformance::Problem problem_;  ///< all rows so far, at their positions
  std::vector<Run> runs_;
  std::int64_t n_ = 0;
  std::string wrong_;
};

}  // namespace

std::string run_ops(std::span<const std::uint8_t> bytes) { return Differential(ByteSource(bytes)).run(); }

}  // namespace headwater::fuzz
