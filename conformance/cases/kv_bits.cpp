// STATE-13: rows in 8 bits. What is stored of a row, to the bit; and all results, judged by the oracle on restored rows.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "conformance/case.hpp"
#include "conformance/forced.hpp"
#include "conformance/formats.hpp"
#include "conformance/replay.hpp"
#include "conformance/rows_8bit.hpp"
#include "conformance/session_checks.hpp"
#include "conformance/session_files.hpp"
#include "conformance/state_archive.hpp"

namespace headwater::conformance {
namespace {

/// A random problem whose rows are stored in 8 bits.
Problem packed_problem(Random& random, const Engine& engine, Select rule, const Variety& variety) {
  Problem problem = session_problem(random, engine, rule, variety);
  const std::vector<std::int64_t> widths{32, 64, 96, 128, 256};
  problem.shape.d_head = random.pick(widths);
  problem.shape.d_value = random.chance(0.5) ? problem.shape.d_head : random.pick(widths);
  for (LayerOptions& own : problem.options.layers) {  // what session_problem() chose are no multiples of 32
    if (own.d_head > 0) own.d_head = random.pick(widths);
    if (own.d_value > 0) own.d_value = random.pick(widths);
  }
  problem.options.kv_bits = 8;
  problem.options.page = random.pick(std::vector<std::int64_t>{256, 512, 4096});
  problem.fill_normal(random);
  return problem;
}

/// Throws unless the session stores, shows and saves the groups that the clause says, of its first tokens.
void require_stored(const Engine& engine, Session& session, const Problem& problem, const std::string& what) {
  MemoryArchive archive;
  const bool saves = engine.claims().save && !has_files_of_its_own(engine) && session.tokens() > 0;
  if (saves) session.exchange_state(archive);
  std::vector<float> row;
  for (std::int64_t layer = 0; layer < problem.shape.n_layer; ++layer) {
    const LayerInput& input = problem.layers[static_cast<std::size_t>(layer)];
    for (const bool keys : {true, false}) {
      const Tensor& tensor = keys ? input.k : input.v;
      const std::string name = fmt::format("{}.{}", keys ? "key" : "value", layer);
      std::vector<std::byte> all;
      row.resize(static_cast<std::size_t>(tensor.width));
      for (std::int64_t h = 0; h < tensor.heads; ++h) {
        for (std::int64_t t = 0; t < session.tokens(); ++t) {
          const std::vector<std::byte> groups = groups_of(tensor.row(t, h), tensor.width);
          all.insert(all.end(), groups.begin(), groups.end());
          keys ? session.read_key(layer, h, t, row) : session.read_value(layer, h, t, row);
          const std::vector<float> wanted = row_of(groups, problem.shape.kv_type);
          if (!std::equal(row.begin(), row.end(), wanted.begin(), wanted.end(), same_bits))
            throw Violation(fmt::format("row {} of head {} of {} is another one; {}", t, h, name, what));
        }
      }
      if (!saves) continue;
      const MemoryArchive::Array& array = archive.arrays.at(name);
      if (array.type != StateArchive::Element::u8 || array.bytes != all)
        throw Violation(fmt::format("{} is saved as other bytes than those of the clause; {}", name, what));
    }
  }
}

// Groups of every kind: ties, zeros, a scale that rounds to 0, subnormal, largest and too large ones, NaN, infinity.
void rows(Context& context) {
  const Engine& engine = *context.engine;
  require_claim(engine, &Claims::kv_bits, "kv_bits");
  Random random(context.seed);
  for (int round = 0; round < context.rounds(20); ++round) {
    Problem problem =
        packed_problem(random, engine, Select::h2o, {.max_chunk = 20, .max_tokens = 60, .max_layers = 2});
    for (LayerInput& layer : problem.layers) {
      for (Tensor* tensor : {&layer.k, &layer.v}) {
        for (std::size_t first = 0; first < tensor->values.size(); first += kGroupElements) {
          const float largest = random.pick(std::vector<float>{
              0.0f, 1.0f, 127.0f, 3.7e-6f, 3.8e-6f, 1e-4f, 7.7e-3f, 127.0f * 65504.0f, 127.0f * 65519.0f,
              127.0f * 65520.0f, 1e30f, std::numeric_limits<float>::infinity(),
              std::numeric_limits<float>::quiet_NaN()});
          const auto chosen = static_cast<std::size_t>(random.integer(0, kGroupElements - 1));
          for (std::size_t i = 0; i < kGroupElements; ++i) {
            float x = std::isfinite(largest) ? largest * static_cast<float>(random.uniform(-1.0, 1.0)) : 1.0f;
            if (random.chance(0.3))
              x = largest == 127.0f ? static_cast<float>(random.integer(-126, 125)) + 0.5f : 0.0f;
            if (i == chosen) x = random.chance(0.5) ? largest : -largest;
            tensor->values[first + i] = round_to(tensor->type, x);
          }
        }
      }
    }
    const std::unique_ptr<Session> session = engine.open(problem.shape, problem.options);
    (void)run(*session, problem);
    require_stored(engine, *session, problem, problem.describe());
  }
}
const Register kRows{{"kv_bits.rows", {"STATE-13"}, "storage", Lane::exact, true, rows}};

// Results are those of the restored rows, by every rule, in every kind of step.
void results(Context& context) {
  const Engine& engine = *context.engine;
  require_claim(engine, &Claims::kv_bits, "kv_bits");
  Random random(context.seed);
  const std::int64_t tokens = context.quick ? 150 : 600;
  for (const Select rule : rules(engine)) {
    for (int round = 0; round < context.rounds(8); ++round) {
      const Problem problem =
          packed_problem(random, engine, rule, {.max_chunk = 60, .max_tokens = tokens, .max_layers = 3});
      const Problem seen = restored(problem);
      const Trace trace = run(engine, problem);
      require_replay(seen, trace);
      require_forced(context, seen, trace);
    }
  }
}
const Register kResults{{"kv_bits.results", {"STATE-13", "STATE-6"}, "storage", Lane::bound, true, results}};

// Decode steps and later turns on either side of a page, after which rows are restored anew for each layer.
void long_results(Context& context) {
  const Engine& engine = *context.engine;
  require_claim(engine, &Claims::kv_bits, "kv_bits");
  context.require_fast_or_full();
  Random random(context.seed);
  const std::int64_t page = context.quick ? 256 : 4096;
  for (const DType type : context.types({DType::f32, DType::bf16})) {
    for (const Select rule : rules(engine)) {
      Problem problem;
      problem.shape = {.n_layer = 2,
                       .n_head = 2,
                       .n_head_kv = 1,
                       .d_head = 64,
                       .d_value = 32,
                       .capacity = page + 404,
                       .kv_type = type};
      problem.options.page = page;
      problem.options.chunk = context.quick ? 100 : 700;
      problem.options.local = 32, problem.options.heavy = 64;
      problem.options.select = rule, problem.options.kv_bits = 8, problem.options.threads = context.threads;
      problem.q_type = problem.k_type = problem.v_type = type;
      problem.steps = {Step::prefill(page - 96), Step::decode(3), Step::prefill(100), Step::decode(1),
                       Step::decode(5)};
      problem.fill_normal(random);
      const Problem seen = restored(problem);
      const Trace trace = run(engine, problem);
      require_replay(seen, trace);
      require_forced_in_part(context, seen, trace, {.border = 32});
    }
  }
}
const Register kLong{{"kv_bits.long", {"STATE-13", "DEC-1"}, "storage", Lane::shape, true, long_results}};

/// A session that takes what this one saves.
std::unique_ptr<Session> loaded(const Engine& engine, const Problem& problem, Session& session) {
  if (has_files_of_its_own(engine)) {
    const TemporaryFolder folder;
    save_session(engine, session, folder.file("session"), "");
    return load_session(engine, problem.shape, problem.options, folder.file("session"), "");
  }
  MemoryArchive archive;
  session.exchange_state(archive);
  archive.load();
  std::unique_ptr<Session> other = engine.open(problem.shape, problem.options);
  other->exchange_state(archive);
  return other;
}

// Groups are shared, dropped and saved as they are: nothing is packed twice.
void lives(Context& context) {
  const Engine& engine = *context.engine;
  require_claim(engine, &Claims::kv_bits, "kv_bits");
  Random random(context.seed);
  const std::int64_t tokens = context.quick ? 150 : 700;
  for (const Select rule : rules(engine)) {
    for (int round = 0; round < context.rounds(5); ++round) {
      const Problem problem =
          packed_problem(random, engine, rule, {.max_chunk = 60, .max_tokens = tokens, .max_layers = 3});
      const std::size_t end = problem.steps.size();
      const Trace wanted = run(engine, problem);
      const auto at = static_cast<std::size_t>(random.integer(1, static_cast<std::int64_t>(end)));
      std::unique_ptr<Session> session = engine.open(problem.shape, problem.options);
      (void)run_steps(*session, problem, 0, at);
      const std::string what = fmt::format("after {} steps; {}", at, problem.describe());
      if (engine.claims().fork) {
        std::unique_ptr<Session> fork = session->fork();
        if (random.chance(0.5)) session.swap(fork);
        Problem other = problem;
        draw_rows_from(random, other, fork->tokens());
        (void)run_steps(*fork, other, at, end);
        require_stored(engine, *session, problem, "a fork " + what);
      }
      if (engine.claims().abort && at < end) {
        session->begin(problem.steps[at]);
        (void)attend_layer(*session, problem, 0, problem.steps[at].n);
        session->abort();
      }
      if (engine.claims().save) {
        session = loaded(engine, problem, *session);
        require_stored(engine, *session, problem, "loaded " + what);
      }
      require_same(trace_of_steps(wanted, problem, at, end), run_steps(*session, problem, at, end), what);
      if (engine.claims().truncate && rule != Select::h2o) {
        session->truncate(session->tokens() / 2);
        require_stored(engine, *session, problem, "truncated " + what);
      }
      session->reset();
      require_same(wanted, run(*session, problem), what);
    }
  }
}
const Register kLives{
    {"kv_bits.lives", {"STATE-13", "STATE-11", "STATE-12"}, "storage", Lane::law, true, lives}};

void config(Context& context) {
  const Engine& engine = *context.engine;
  require_claim(engine, &Claims::kv_bits, "kv_bits");
  const Shape shape{.n_layer = 2, .n_head = 1, .n_head_kv = 1, .d_head = 64, .d_value = 32, .capacity = 16};
  Options options;
  for (const std::int64_t bits : {-8, 1, 4, 7, 9, 16}) {
    options.kv_bits = bits;
    require_refused(engine, shape, options, "kv_bits", std::to_string(bits));
  }
  for (const std::int64_t bits : {0, 8}) {
    options.kv_bits = bits;
    if (engine.open(shape, options)->options().kv_bits != bits)
      throw Violation(fmt::format("kv_bits {} is another number among the effective options", bits));
  }
  for (const std::int64_t width : {1, 31, 33, 48, 65535}) {
    Shape other = shape;
    other.d_head = width;
    require_refused(engine, other, options, "d_head", std::to_string(width));
    other.d_head = 64, other.d_value = width;
    require_refused(engine, other, options, "d_value", std::to_string(width));
    if (!engine.claims().layers) continue;
    Options own = options;
    own.layers = {{}, {.d_head = width}};
    require_refused(engine, shape, own, "layers[1].d_head", std::to_string(width));
    own.layers = {{}, {.d_value = width}};
    require_refused(engine, shape, own, "layers[1].d_value", std::to_string(width));
  }
  options.kv_owner = KvOwner::caller;
  if (engine.claims().stored_rows) require_refused(engine, shape, options, "kv_owner", "1");
}
const Register kConfig{{"kv_bits.config", {"STATE-13", "CFG-1"}, "config", Lane::state, true, config}};

// Half of what rows of 16 bits take, and the little that scales add.
void memory(Context& context) {
  const Engine& engine = *context.engine;
  require_claim(engine, &Claims::kv_bits, "kv_bits");
  if (engine.claims().double_arithmetic) throw Skipped("the engine keeps restored rows beside the groups");
  Random random(context.seed);
  Problem problem;
  problem.shape = {.n_layer = 3,
                   .n_head = 2,
                   .n_head_kv = 1,
                   .d_head = 128,
                   .d_value = 96,
                   .capacity = 2048,
                   .kv_type = DType::bf16};
  problem.q_type = problem.k_type = problem.v_type = DType::bf16;
  problem.options.chunk = 256, problem.options.local = 32, problem.options.heavy = 32;
  problem.options.threads = context.threads;
  problem.steps = {Step::prefill(2048)};
  problem.fill_normal(random);
  const auto kv_bytes = [&](std::int64_t bits) {
    problem.options.kv_bits = bits;
    const std::unique_ptr<Session> session = engine.open(problem.shape, problem.options);
    (void)run(*session, problem);
    return session->memory_bytes().kv;
  };
  const std::int64_t of_16 = kv_bytes(0);
  const std::int64_t of_8 = kv_bytes(8);
  if (of_8 < 1 || static_cast<double>(of_8) >= 0.6 * static_cast<double>(of_16))
    throw Violation(
        fmt::format("memory_bytes().kv is {} in 8 bits, {} in 16; {}", of_8, of_16, problem.describe()));
}
const Register kMemory{{"kv_bits.memory", {"STATE-13"}, "storage", Lane::state, true, memory}};

}  // namespace
}  // namespace headwater::conformance
