// Forks (STATE-11), saved sessions (STATE-12), rows of the caller (ROWS-1), several sequences in one call (SEQ-1): the bits of
// one session by itself.

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "conformance/case.hpp"
#include "conformance/other_ways.hpp"
#include "conformance/placed.hpp"
#include "conformance/session_checks.hpp"
#include "conformance/session_files.hpp"
#include "conformance/state_archive.hpp"

namespace headwater::conformance {
namespace {

Problem small_problem(Random& random, const Engine& engine, Select rule) {
  Problem problem = session_problem(random, engine, rule,
                                    {.max_chunk = 60, .max_tokens = 700, .max_layers = 3, .wide = false});
  problem.options.page = random.pick(std::vector<std::int64_t>{256, 512, 4096});
  return problem;
}

void forks(Context& context) {
  const Engine& engine = *context.engine;
  require_claim(engine, &Claims::fork, "fork");
  Random random(context.seed);
  for (const Select rule : rules(engine)) {
    for (int round = 0; round < context.rounds(20); ++round) {
      const Problem problem = small_problem(random, engine, rule);
      const std::size_t end = problem.steps.size();
      const Trace wanted = run(engine, problem);
      const auto at = static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(end)));
      std::unique_ptr<Session> parent = engine.open(problem.shape, problem.options);
      (void)run_steps(*parent, problem, 0, at);
      const std::string what = fmt::format("forked after {} steps; {}", at, problem.describe());
      const std::int64_t stored = parent->tokens();
      if (stored < problem.tokens()) {
        parent->begin(Step::decode());
        require_code(code_of([&] { (void)parent->fork(); }), ErrorCode::wrong_state,
                     "a fork in an open step");
        if (parent->failed()) throw Violation("a fork in an open step has failed it; " + what);
        for (std::int64_t layer = 0; layer < problem.shape.n_layer; ++layer)
          (void)attend_layer(*parent, problem, layer, 1);
        parent->end();
        parent = engine.open(problem.shape, problem.options);
        (void)run_steps(*parent, problem, 0, at);
      }
      parent->set_observer([](const ChunkRecord&) { throw Violation("a fork has its parent's observer"); });
      std::unique_ptr<Session> fork = parent->fork();
      require_same(picture(*fork), picture(*parent), what);
      if (stored < problem.tokens()) {
        const std::unique_ptr<Session> unobserved = parent->fork();
        unobserved->begin(Step::decode());
        for (std::int64_t layer = 0; layer < problem.shape.n_layer; ++layer)
          (void)attend_layer(*unobserved, problem, layer, 1);
        unobserved->end();
      }
      parent->set_observer({});
      Problem other = problem;
      if (parent->tokens() < problem.tokens()) draw_rows_from(random, other, parent->tokens());
      Session& stranger = random.chance(0.5) ? *fork : *parent;
      std::unique_ptr<Session>& kept = &stranger == fork.get() ? parent : fork;
      (void)run_steps(stranger, other, at, end);
      if (random.chance(0.5)) stranger.reset();
      if (random.chance(0.5)) (&stranger == fork.get() ? fork : parent).reset();
      require_same(trace_of_steps(wanted, problem, at, end), run_steps(*kept, problem, at, end), what);
    }
  }
}
const Register kForks{{"sequences.forks", {"STATE-11"}, "session", Lane::law, true, forks}};

/// A session of the problem that has taken what another one gives, after it has refused damaged copies of it.
std::unique_ptr<Session> through_an_archive(const Engine& engine, const Problem& problem, Session& saved,
                                            const std::string& what) {
  MemoryArchive archive;
  saved.exchange_state(archive);
  archive.load();
  std::unique_ptr<Session> loaded = engine.open(problem.shape, problem.options);
  for (const auto& [name, numbers] : archive.lists) {
    if (numbers.empty()) continue;
    MemoryArchive damaged;
    damaged.lists = archive.lists, damaged.arrays = archive.arrays;
    damaged.lists.find(name)->second.pop_back();
    damaged.load();
    require_code(code_of([&] { loaded->exchange_state(damaged); }), ErrorCode::invalid_argument,
                 fmt::format("{} without its last number; {}", name, what));
    if (loaded->tokens() != 0) throw Violation("a refused load left tokens; " + what);
  }
  loaded->exchange_state(archive);
  return loaded;
}

std::unique_ptr<Session> through_a_file(const Engine& engine, const Problem& problem, Session& saved) {
  const TemporaryFolder folder;
  save_session(engine, saved, folder.file("session"), "");
  return load_session(engine, problem.shape, problem.options, folder.file("session"), "");
}

void saves(Context& context) {
  const Engine& engine = *context.engine;
  require_claim(engine, &Claims::save, "save");
  Random random(context.seed);
  for (const Select rule : rules(engine)) {
    for (int round = 0; round < context.rounds(20); ++round) {
      const Problem problem = small_problem(random, engine, rule);
      const std::size_t end = problem.steps.size();
      const Trace wanted = run(engine, problem);
      const auto at = static_cast<std::size_t>(random.integer(1, static_cast<std::int64_t>(end)));
      const std::unique_ptr<Session> saved = engine.open(problem.shape, problem.options);
      (void)run_steps(*saved, problem, 0, at);
      const std::string what = fmt::format("saved after {} steps; {}", at, problem.describe());
      const std::unique_ptr<Session> loaded = has_files_of_its_own(engine)
                                                  ? through_a_file(engine, problem, *saved)
                                                  : through_an_archive(engine, problem, *saved, what);
      require_same(picture(*loaded), picture(*saved), what);
      require_same(trace_of_steps(wanted, problem, at, end), run_steps(*loaded, problem, at, end), what);
    }
  }
}
const Register kSaves{{"sequences.saves", {"STATE-12"}, "session", Lane::law, true, saves}};

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// What must be as it was saved, each changed alone: the word that an error names it by, shape and options.
struct OtherThan {
  const char* name;
  std::function<void(Shape&, Options&)> change;
};
/// A width that no layer has of its own: a layer whose own one is the shape's would say so, once the shape's is another.
void widen(std::int64_t& width, Options& options, std::int64_t LayerOptions::*own) {
  for (LayerOptions& layer : options.layers) {
    if (layer.*own == width) layer.*own = 0;
  }
  const auto has = [&](const LayerOptions& layer) { return layer.*own == width; };
  do ++width;
  while (std::any_of(options.layers.begin(), options.layers.end(), has));
}
const std::vector<OtherThan> kOthers{
    {"d_head", [](Shape& shape, Options& options) { widen(shape.d_head, options, &LayerOptions::d_head); }},
    {"d_value",
     [](Shape& shape, Options& options) { widen(shape.d_value, options, &LayerOptions::d_value); }},
    {"kv_type",
     [](Shape& shape, Options&) { shape.kv_type = shape.kv_type == DType::f32 ? DType::bf16 : DType::f32; }},
    {"batch", [](Shape&, Options& options) { options.batch = std::max(options.batch, options.chunk) + 1; }},
    {"dense_below", [](Shape&, Options& options) { ++options.dense_below; }},
    {"dense_layers",
     [](Shape&, Options& options) {
       options.dense_layers =
           options.dense_layers.empty() ? std::vector<std::int64_t>{0} : std::vector<std::int64_t>{};
     }},
    {"scale", [](Shape&, Options& options) { options.scale = 0.7734375; }},
    {"softcap", [](Shape&, Options& options) { options.softcap += 1.5; }},
    {"score_type",
     [](Shape&, Options& options) {
       options.score_type = options.score_type == ScoreType::f32 ? ScoreType::bf16 : ScoreType::f32;
     }},
    {"sinks",
     [](Shape& shape, Options& options) {
       options.sinks.resize(static_cast<std::size_t>(shape.n_head));
       options.sinks.back() = 8.5f;
     }},
    {"alibi", [](Shape& shape, Options& options) {
       options.alibi.resize(static_cast<std::size_t>(shape.n_head));
       options.alibi.back() = 8.5f;
     }}};

/// MEM-4 of a session that was loaded: ascending positions of stored tokens, or none.
void require_sets(const Session& session, const std::string& what) {
  for (std::int64_t layer = 0; layer < session.shape().n_layer; ++layer) {
    const Snapshot held = snapshot(session, layer);
    for (std::size_t i = 0; i < held.memory.size(); ++i) {
      const bool first = static_cast<std::int64_t>(i) % held.memory_count == 0;
      if (held.memory[i] >= 0 && held.memory[i] < session.tokens() &&
          (first || held.memory[i] > held.memory[i - 1]))
        continue;
      throw Violation(fmt::format("MEM-4: a loaded set of layer {} has {}; {}", layer, held.memory[i], what));
    }
  }
}

/// load() of such a file must be refused, and name `name`.
void require_no_load(const Engine& engine, const Shape& shape, const Options& options,
                     const std::string& path, const std::string& fingerprint, const std::string& name,
                     const std::string& what) {
  try {
    (void)load_session(engine, shape, options, path, fingerprint);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument)
      require_code(error.code(), ErrorCode::invalid_argument, fmt::format("{}; {}", error.what(), what));
    if (std::string_view(error.what()).find(name) == std::string_view::npos)
      throw Violation(
          fmt::format("a load is refused and does not name {}: {}; {}", name, error.what(), what));
    return;
  }
  throw Violation("a load was not refused; " + what);
}

// Files: written whole or not at all, believed in nothing.
void files(Context& context) {
  const Engine& engine = *context.engine;
  require_claim(engine, &Claims::save, "save");
  Random random(context.seed);
  for (const Select rule : rules(engine)) {
    for (int round = 0; round < context.rounds(12); ++round) {
      Problem problem = small_problem(random, engine, rule);
      if (engine.claims().layers && random.chance(0.5)) {
        problem.options.layers.resize(static_cast<std::size_t>(problem.shape.n_layer));
        LayerOptions& last = problem.options.layers.back();  // whose rows keep their widths
        last.window = 9, last.softcap = 20.0, last.sinks.emplace();
      }
      problem.options.scale = problem.options.scale.value_or(0.5);  // of no d_head
      const Shape& shape = problem.shape;
      const Options& options = problem.options;
      const std::size_t end = problem.steps.size();
      const Trace wanted = run(engine, problem);
      const auto at = static_cast<std::size_t>(random.integer(1, static_cast<std::int64_t>(end)));
      const std::unique_ptr<Session> saved = engine.open(shape, options);
      (void)run_steps(*saved, problem, 0, at);
      const std::string what = fmt::format("saved after {} steps; {}", at, problem.describe());
      const TemporaryFolder folder;
      const std::string path = folder.file("session");
      const std::string of = random.chance(0.5) ? "" : "a model, layers 0 .. 3";
      write_bytes(path, "what stood here before");
      save_session(engine, *saved, path, of);
      if (folder.files() != 1) throw Violation("save() left another file than its own; " + what);

      Problem larger = problem;
      larger.shape.capacity += random.integer(0, 300);
      const std::unique_ptr<Session> loaded = load_session(engine, larger.shape, options, path, of);
      require_same(picture(*loaded), picture(*saved), what);
      require_same(trace_of_steps(wanted, problem, at, end), run_steps(*loaded, problem, at, end), what);

      if (engine.claims().truncate) {
        const std::unique_ptr<Session> cut = load_session(engine, shape, options, path, of);
        Lengths lengths(cut->options());
        lengths.ended(cut->chunks());
        lengths.loaded();
        const std::int64_t n = random.integer(0, cut->tokens());
        require_code(
            code_of([&] { cut->truncate(n); }),
            lengths.possible(n) ? std::nullopt : std::optional<ErrorCode>(ErrorCode::invalid_argument),
            fmt::format("truncate() to {} after a load; {}", n, what));
      }

      const auto refuse = [&](const Shape& asked_shape, const Options& asked, const std::string& file,
                              const std::string& fingerprint, const std::string& name,
                              const std::string& wrong) {
        require_no_load(engine, asked_shape, asked, file, fingerprint, name, wrong + "; " + what);
      };
      refuse(shape, options, path, of + "!", "fingerprint", "another fingerprint");
      refuse(shape, options, folder.file("none"), of, "", "no such file");
      for (const OtherThan& other : kOthers) {
        Shape other_shape = shape;
        Options asked = options;
        other.change(other_shape, asked);
        refuse(other_shape, asked, path, of, other.name, fmt::format("another {}", other.name));
      }
      if (engine.claims().layers) {
        Options asked = options;
        asked.layers.resize(static_cast<std::size_t>(shape.n_layer));
        asked.layers.back().softcap = 2.5;
        refuse(shape, asked, path, of, "layers", "other layers");
      }
      if (saved->tokens() > 1) {
        Shape smaller = shape;
        smaller.capacity = saved->tokens() - 1;
        refuse(smaller, options, path, of, "", "a capacity below the tokens");
      }

      const std::string whole = bytes_of(path);
      const std::string damaged = folder.file("damaged");
      for (const std::size_t size : {std::size_t{0}, std::size_t{1}, whole.size() / 2, whole.size() - 1}) {
        write_bytes(damaged, whole.substr(0, size));
        refuse(shape, options, damaged, of, "", fmt::format("the first {} bytes of {}", size, whole.size()));
      }
      write_bytes(damaged, whole + "x");
      refuse(shape, options, damaged, of, "", "a byte too many");
      for (int i = 0; i < 20; ++i) {
        std::string changed = whole;
        const auto byte =
            static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(whole.size()) - 1));
        changed[byte] = static_cast<char>(changed[byte] ^ (1 << random.integer(0, 7)));
        write_bytes(damaged, changed);
        std::unique_ptr<Session> session;
        const auto code = code_of([&] { session = load_session(engine, shape, options, damaged, of); });
        const std::string flipped = fmt::format("a bit of byte {} flipped; {}", byte, what);
        if (session) {
          require_sets(*session, flipped);
        } else {
          require_code(code, ErrorCode::invalid_argument, flipped);
        }
      }

      for (const std::string& wrong : {std::string("two\nlines"), std::string(1025, 'x')}) {
        require_code(code_of([&] { save_session(engine, *saved, path, wrong); }), ErrorCode::invalid_argument,
                     "a fingerprint that none may be; " + what);
      }
      require_code(code_of([&] { save_session(engine, *saved, folder.file("none/session"), of); }),
                   ErrorCode::internal, "a file in a folder that does not exist; " + what);
      if (saved->tokens() < shape.capacity) {
        saved->begin(Step::decode());
        require_code(code_of([&] { save_session(engine, *saved, path, of); }), ErrorCode::wrong_state,
                     "save() in an open step; " + what);
        if (saved->failed()) throw Violation("save() in an open step has failed it; " + what);
      }
      if (bytes_of(path) != whole) throw Violation("a refused save() changed its file; " + what);
    }
  }
}
const Register kFiles{{"sequences.files", {"STATE-12"}, "session", Lane::law, true, files}};

/// A problem whose K and V rows have the KV type, as ROWS-1 wants them.
Problem stored_problem(Random& random, const Engine& engine, Select rule) {
  Problem problem = small_problem(random, engine, rule);
  problem.k_type = problem.v_type = problem.shape.kv_type;
  problem.fill_normal(random);
  return problem;
}

void stored_rows(Context& context) {
  const Engine& engine = *context.engine;
  require_claim(engine, &Claims::stored_rows, "stored_rows");
  Random random(context.seed);
  for (const Select rule : rules(engine)) {
    for (int round = 0; round < context.rounds(20); ++round) {
      const Problem problem = stored_problem(random, engine, rule);
      require_stored_rows(random, engine, problem, run(engine, problem));
    }
  }
}
const Register kStoredRows{{"sequences.stored_rows", {"ROWS-1"}, "session", Lane::law, true, stored_rows}};

// What does not hold the tokens is refused, and the step goes on.
void stored_rows_refused(Context& context) {
  const Engine& engine = *context.engine;
  require_claim(engine, &Claims::stored_rows, "stored_rows");
  const Shape shape{.n_layer = 1, .n_head = 2, .n_head_kv = 1, .d_head = 4, .d_value = 4, .capacity = 16};
  const std::vector<float> values(32, 0.5f);
  std::vector<float> outs(24);
  const Rows q = Rows::token_major(values.data(), DType::f32, 2, 4);
  const Rows k = Rows::token_major(values.data(), DType::f32, 1, 4);
  const MutableRows out = MutableRows::token_major(outs.data(), DType::f32, 2, 4);
  const std::vector<std::int32_t> table{1, 0};
  StoredRows right{.keys = values.data(),
                   .values = values.data(),
                   .rows = 3,
                   .key_row_stride = 4,
                   .key_head_stride = 4,
                   .value_row_stride = 4,
                   .value_head_stride = 4,
                   .table = table.data(),
                   .table_size = 2,
                   .page_rows = 2,
                   .pages = 2,
                   .key_page_stride = 8,
                   .value_page_stride = 8};
  Options options;
  const std::unique_ptr<Session> own = engine.open(shape, options);
  options.kv_owner = KvOwner::caller;
  const std::unique_ptr<Session> session = engine.open(shape, options);
  if (session->options().kv_owner != KvOwner::caller)
    throw Violation("options(): kv_owner is not the caller");
  own->begin(Step::decode(3));
  session->begin(Step::decode(3));
  const auto refuse = [](Session& asked, const char* what, const std::function<void()>& call) {
    require_code(code_of(call), ErrorCode::invalid_argument, what);
    if (asked.failed()) throw Violation(fmt::format("{}: the step has failed", what));
  };
  refuse(*own, "attend_stored() of a session that keeps its rows",
         [&] { own->attend_stored(0, q, right, out); });
  refuse(*session, "attend() with kv_owner caller", [&] { session->attend(0, q, k, k, out); });
  const auto refuse_rows = [&](const char* what, const std::function<void(StoredRows&)>& change) {
    StoredRows wrong = right;
    change(wrong);
    refuse(*session, what, [&] { session->attend_stored(0, q, wrong, out); });
  };
  refuse_rows("no keys", [](StoredRows& rows) { rows.keys = nullptr; });
  refuse_rows("no values", [](StoredRows& rows) { rows.values = nullptr; });
  refuse_rows("fewer rows than tokens", [](StoredRows& rows) { rows.rows = 2; });
  refuse_rows("a table too short", [](StoredRows& rows) { rows.table_size = 1; });
  refuse_rows("pages of no rows", [](StoredRows& rows) { rows.page_rows = 0; });
  refuse_rows("no pages", [](StoredRows& rows) { rows.pages = 0; });
  refuse_rows("a page beyond the last", [](StoredRows& rows) { rows.pages = 1; });
  const std::vector<std::int32_t> negative{1, -1};
  refuse_rows("a page -1", [&](StoredRows& rows) { rows.table = negative.data(); });
  session->attend_stored(0, q, right, out);
  session->end();
  // A table that was taken once is checked against what the next call says.
  session->begin(Step::decode(1));
  refuse_rows("rows of the step before", [](StoredRows&) {});
  right.rows = 4;
  refuse_rows("a known page beyond the last", [](StoredRows& rows) { rows.pages = 1; });
  session->attend_stored(0, q, right, out);
  session->end();
  if (code_of([&] { session->read_key(0, 0, 0, outs); }) == std::nullopt)
    throw Violation("read_key() of a session without rows succeeds");
}
const Register kStoredRowsRefused{{"sequences.stored_rows_refused",
                                   {"ROWS-1", "STATE-5"},
                                   "session",
                                   Lane::state,
                                   true,
                                   stored_rows_refused}};

/// Step `at` of the problem, a decode step, without queries: the rest has the bits of a session that was given them.
void require_rows_alone(Random& random, const Engine& engine, Problem problem, std::size_t at) {
  const std::size_t end = problem.steps.size();
  const Trace wanted = run(engine, problem);
  const std::string what = fmt::format("step {} without queries; {}", at, problem.describe());
  const std::unique_ptr<Session> plain = engine.open(problem.shape, problem.options);
  (void)run_steps(*plain, problem, 0, at + 1);
  const std::unique_ptr<Session> session = engine.open(problem.shape, problem.options);
  (void)run_steps(*session, problem, 0, at);
  store_step(*session, problem, problem.steps[at]);
  require_same(picture(*session), picture(*plain), what);
  require_same(trace_of_steps(wanted, problem, at + 1, end), run_steps(*session, problem, at + 1, end), what);

  if (!engine.claims().stored_rows) return;
  problem.options.kv_owner = KvOwner::caller;
  const std::unique_ptr<Session> stored = engine.open(problem.shape, problem.options);
  for (std::size_t s = 0; s < end; ++s) {
    const std::int64_t first = stored->tokens();
    const auto outs = stored_step(random, *stored, problem, problem.steps[s], s != at);
    for (std::size_t layer = 0; layer < outs.size(); ++layer) {
      const std::int64_t row = problem.out_row(static_cast<std::int64_t>(layer));
      if (std::equal(outs[layer].begin(), outs[layer].end(), wanted.layers[layer].out.begin() + first * row))
        continue;
      throw Violation(
          fmt::format("layer {} at token {} over rows of the caller: other outputs; {}", layer, first, what));
    }
  }
}

void rows_alone(Context& context) {
  const Engine& engine = *context.engine;
  require_claim(engine, &Claims::rows_alone, "rows_alone");
  Random random(context.seed);
  for (const Select rule : rules(engine)) {
    for (int round = 0; round < context.rounds(40); ++round) {
      Problem problem = stored_problem(random, engine, rule);
      const auto at = static_cast<std::size_t>(random.integer(0, std::ssize(problem.steps) - 1));
      problem.steps[at] = Step::decode(problem.steps[at].n);
      for (std::size_t s = at + 1; s < problem.steps.size(); ++s) problem.steps[s].turn_length = 0;
      require_rows_alone(random, engine, problem, at);

      // What is not allowed goes on as if it had not been asked for.
      const std::unique_ptr<Session> session = engine.open(problem.shape, problem.options);
      const Tensor& k = problem.layers[0].k;
      const Placed rows(Placement::token_major, k, 0, 1);
      Placed out(Placement::token_major, problem.out_type, 1, problem.shape.n_head,
                 problem.layer_shape(0).d_value);
      const auto refused = [&](const Rows& q, const MutableRows& to, const char* what) {
        require_code(code_of([&] { session->attend(0, q, rows.rows(), rows.rows(), to); }),
                     ErrorCode::invalid_argument, what);
        if (session->failed()) throw Violation(fmt::format("{}: the step has failed", what));
      };
      session->begin(Step::prefill(1));
      refused({}, {}, "a prefill call without queries");
      session->reset();
      session->begin(Step::decode(1));
      refused({}, out.mutable_rows(), "outputs without queries");
      refused(Placed(Placement::token_major, problem.layers[0].q, 0, 1).rows(), {},
              "queries without outputs");
    }
  }
}
const Register kRowsAlone{{"sequences.rows_alone", {"DEC-2"}, "session", Lane::law, true, rows_alone}};

struct LayerSizes {
  std::int64_t heads, width, capacity;
};

/// A layer of one key/value head, all rows of one type.
Problem one_layer(const Context& context, Select rule, DType type, const LayerSizes& sizes) {
  Problem problem;
  problem.shape = {.n_layer = 1,
                   .n_head = sizes.heads,
                   .n_head_kv = 1,
                   .d_head = sizes.width,
                   .d_value = sizes.width,
                   .capacity = sizes.capacity,
                   .kv_type = type};
  problem.q_type = problem.k_type = problem.v_type = type;
  problem.options.select = rule;
  problem.options.threads = context.threads;
  return problem;
}

// A prefix of more pages, and more key blocks, than one level of summaries has.
void rows_alone_sizes(Context& context) {
  const Engine& engine = *context.engine;
  require_claim(engine, &Claims::rows_alone, "rows_alone");
  Random random(context.seed);
  const bool slow = context.quick || engine.claims().double_arithmetic;  // 20000 dense tokens take it minutes
  for (const Select rule : rules(engine)) {
    for (const DType type : {DType::f32, DType::bf16}) {
      Problem problem = one_layer(context, rule, type, {1, 8, 20400});
      problem.options.batch = 256, problem.options.chunk = 128;
      problem.options.local = 32, problem.options.heavy = 96;
      problem.steps = {Step::decode(slow ? 300 : 20000), Step::prefill(300), Step::decode(1)};
      problem.fill_normal(random);
      require_rows_alone(random, engine, problem, 0);
    }
  }
}
const Register kRowsAloneSizes{
    {"sequences.rows_alone_sizes", {"DEC-2"}, "session", Lane::law, true, rows_alone_sizes}};

// Rows of model widths: chunks, gathered rows and segments of long contexts on each side of the borders of pages.
void pages_sizes(Context& context) {
  const Engine& engine = *context.engine;
  require_claim(engine, &Claims::fork, "fork");  // engines without it keep no pages
  context.require_fast_or_full();
  Random random(context.seed);
  for (const Select rule : rules(engine)) {
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
      Problem problem = one_layer(context, rule, type, {2, 64, 1500});
      problem.options.batch = 1024, problem.options.chunk = 512;
      problem.options.local = 64, problem.options.heavy = 128;
      // The last step has more rows than decode kernels take: dense attention over all pages.
      problem.steps = {Step::prefill(777), Step::decode(5), Step::prefill(600), Step::decode(1),
                       Step::decode(100)};
      problem.fill_normal(random);
      const Trace wanted = run(engine, problem);
      for (const std::int64_t page : {256, 768}) {
        if (context.quick && page == 768) continue;
        problem.options.page = page;
        require_same(wanted, run(engine, problem), fmt::format("pages of {}; {}", page, problem.describe()));
      }
    }
  }
}
const Register kPagesSizes{{"sequences.pages_sizes", {"STATE-6"}, "session", Lane::law, true, pages_sizes}};

// Sessions of several problems at several of their steps; a few of them, and more than an engine may take at once.
void together(Context& context) {
  const Engine& engine = *context.engine;
  Random random(context.seed);
  for (int round = 0; round < context.rounds(16); ++round) {
    std::vector<Problem> problems;
    for (int i = 0; i < 4; ++i) problems.push_back(small_problem(random, engine, random.pick(rules(engine))));
    std::vector<Trace> wanted;
    for (const Problem& problem : problems) wanted.push_back(run(engine, problem));
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<Sequence> sequences;
    const std::int64_t count = random.chance(0.2) ? random.integer(64, 70) : random.integer(1, 8);
    std::int64_t layers = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::size_t which = static_cast<std::size_t>(random.integer(0, std::ssize(problems) - 1));
      const Problem& problem = problems[which];
      // Of many mostly the first decode step, before which little is to be computed.
      auto at = static_cast<std::size_t>(random.integer(0, std::ssize(problem.steps) - 1));
      const auto decode = std::find_if(problem.steps.begin(), problem.steps.end(),
                                       [](const Step& step) { return step.kind == Step::Kind::decode; });
      if (count > 8 && decode != problem.steps.end()) {
        at = static_cast<std::size_t>(decode - problem.steps.begin());
      }
      sessions.push_back(engine.open(problem.shape, problem.options));
      sequences.push_back({&problem, &wanted[which], sessions.back().get(), problem.steps[at]});
      (void)run_steps(*sessions.back(), problem, 0, at);
      sequences.back().session->begin(sequences.back().step);
      layers = std::max(layers, problem.shape.n_layer);
    }
    for (std::int64_t layer = 0; layer < layers; ++layer) attend_layer_together(sequences, layer);
    for (const Sequence& one : sequences) one.session->end();
  }
}
const Register kTogether{{"sequences.together", {"SEQ-1"}, "session", Lane::law, true, together}};

}  // namespace
}  // namespace headwater::conformance
