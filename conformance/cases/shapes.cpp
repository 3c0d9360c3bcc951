// Lane shape: the sizes people run. Every tile, segment, table and narrow type of an engine has a case beyond it:
// chunks of 256 to 1024 tokens, heads of 64 to 256 elements, groups of 1 to 16 query heads, memory sets of 512, positions
// beyond 2^16, rows beyond 2^32 bytes. Scores and sets are replayed whole, column sums judged whole, outputs in part.

#include <algorithm>
#include <string>

#include "conformance/forced.hpp"
#include "conformance/other_ways.hpp"
#include "conformance/session_checks.hpp"

namespace headwater::conformance {
namespace {

const std::vector<std::string> kAttention{"LOGIT-1", "INTRA-1", "INTRA-2", "INTER-1", "INTER-2", "FUSE-1",
                                          "DEC-1",   "SCORE-6", "MEM-2",   "PLAN-1",  "MASK-1"};

struct Heads {
  std::int64_t query = 1;
  std::int64_t kv = 1;
  std::int64_t d = 128;
  std::int64_t dv = 128;
};

struct Rule {
  std::int64_t chunk = 1024;
  std::int64_t local = 256;
  std::int64_t heavy = 256;
  bool clamp = true;
};

Problem production(Context& context, DType type, const Heads& heads, const Rule& rule,
                   std::vector<Step> steps) {
  if (context.quick) throw Skipped("sizes of thousands of tokens run without --quick only");
  Problem problem;
  problem.shape.n_head = heads.query;
  problem.shape.n_head_kv = heads.kv;
  problem.shape.d_head = heads.d;
  problem.shape.d_value = heads.dv;
  problem.options.chunk = rule.chunk;
  problem.options.batch = 4 * rule.chunk;
  problem.options.local = rule.local;
  problem.options.heavy = rule.heavy;
  problem.options.clamp = rule.clamp;
  problem.options.threads = context.threads;
  problem.q_type = problem.k_type = problem.v_type = problem.shape.kv_type = type;
  problem.steps = std::move(steps);
  problem.shape.capacity = problem.tokens();
  Random random(context.seed + static_cast<std::uint64_t>(type));
  problem.fill_normal(random);
  return problem;
}

void heads_of_128(Context& context) {
  const Heads heads{.query = 2, .kv = 1, .d = 128, .dv = 128};
  Problem problem = production(context, DType::f32, heads, {}, {Step::prefill(4 * 1024 + 1000)});
  draw_to(problem, 700, 1024);
  require_conforming_in_part(context, problem);
  problem = production(context, DType::bf16, heads, {.local = 200, .heavy = 300},
                       {Step::prefill(4 * 1024 + 1), Step::decode(1)});
  problem.options.schedule = Schedule::chunk_major;
  problem.options.threads = 3;
  require_conforming_in_part(context, problem);
  problem = production(context, DType::f16, heads, {.local = 200, .heavy = 300}, {Step::prefill(2100)});
  problem.out_type = DType::f16;
  require_conforming_in_part(context, problem);
}
const Register kOf128{{"shape.heads_of_128", kAttention, "attention", Lane::shape, true, heads_of_128}};

// More keys in a chunk than a segment of BF16 keys, and more segments of floats than in a chunk of 1024.
void chunks_of_2048(Context& context) {
  for (const DType type : context.types({DType::f32, DType::bf16})) {
    Problem problem = production(context, type, {.query = 1, .kv = 1, .d = 64, .dv = 64}, {.chunk = 2048},
                                 {Step::prefill(2 * 2048 + 33)});
    require_conforming_in_part(context, problem, {.whole_head_of = 1});
    // In the second segment of a chunk, and so large that weights relative to any other key are infinite.
    draw_to(problem, 1500, 2048, 120.0f);
    require_conforming_in_part(context, problem, {.whole_head_of = 1});
  }
}
const Register kOf2048{{"shape.chunks_of_2048", kAttention, "attention", Lane::shape, true, chunks_of_2048}};

// Chunks of no whole tiles, in a session that has room for the prompt alone, by more threads than heads fill.
void chunks_of_500(Context& context) {
  for (const DType type : context.types({DType::f16, DType::bf16})) {
    Problem problem = production(context, type, {.query = 6, .kv = 3, .d = 32, .dv = 48},
                                 {.chunk = 500, .local = 100, .heavy = 100}, {Step::prefill(2000)});
    problem.options.threads = 4;
    require_conforming_in_part(context, problem, {.border = 32});
  }
}
const Register kOf500{{"shape.chunks_of_500", kAttention, "attention", Lane::shape, true, chunks_of_500}};

// Sets of more entries than two segments, chunks of more rows than groups of 128 to 256 hold.
void chunks_of_3000(Context& context) {
  for (const DType type : context.types({DType::f32, DType::bf16})) {
    const Problem problem = production(context, type, {.query = 1, .kv = 1, .d = 32, .dv = 32},
                                       {.chunk = 3000, .local = 1000, .heavy = 1500}, {Step::prefill(6100)});
    require_conforming_in_part(context, problem,
                               {.chunk = [](const Chunk& chunk) { return chunk.begin > 0; }});
  }
}
const Register kOf3000{{"shape.chunks_of_3000", kAttention, "attention", Lane::shape, true, chunks_of_3000}};

void heads_of_64(Context& context) {
  const Rule rule{.chunk = 512, .clamp = false};
  Problem problem = production(context, DType::f32, {.query = 4, .kv = 1, .d = 64, .dv = 64}, rule,
                               {Step::prefill(4 * 512 + 31), Step::decode(2)});
  problem.options.batch = 1024;
  require_conforming_in_part(context, problem);
  problem = production(context, DType::f16, {.query = 4, .kv = 4, .d = 64, .dv = 64}, rule,
                       {Step::prefill(4 * 512 + 33)});
  problem.options.schedule = Schedule::chunk_major;
  problem.options.threads = 1;
  require_conforming_in_part(context, problem);
  problem = production(context, DType::bf16, {.query = 8, .kv = 1, .d = 64, .dv = 64}, rule,
                       {Step::prefill(4 * 512 + 31)});
  problem.options.score_type = ScoreType::f32;
  problem.out_type = DType::bf16;
  problem.options.threads = 7;
  require_conforming_in_part(context, problem);
}
const Register kOf64{{"shape.heads_of_64", kAttention, "attention", Lane::shape, true, heads_of_64}};

void heads_of_192_and_128(Context& context) {
  const Rule rule{.chunk = 256, .local = 100, .heavy = 412, .clamp = false};
  for (const DType type : context.types({DType::f32, DType::f16, DType::bf16})) {
    Problem problem = production(context, type, {.query = 2, .kv = 2, .d = 192, .dv = 128}, rule,
                                 {Step::prefill(4 * 256 + 33), Step::prefill(300), Step::decode(5)});
    problem.options.softcap = type == DType::f32 ? 30.0 : 0.0;
    problem.options.batch = 512;
    require_conforming_in_part(context, problem);
  }
}
const Register kOf192{
    {"shape.heads_of_192_and_128", kAttention, "attention", Lane::shape, true, heads_of_192_and_128}};

void heads_of_256(Context& context) {
  for (const DType type : context.types({DType::f32, DType::f16, DType::bf16})) {
    const Rule rule{.chunk = type == DType::f32 ? 1024 : 512, .local = 255, .heavy = 256};
    Problem problem = production(context, type, {.query = 2, .kv = 1, .d = 256, .dv = 256}, rule,
                                 {Step::prefill(2 * rule.chunk + 1000), Step::decode(1)});
    problem.options.schedule = type == DType::bf16 ? Schedule::chunk_major : Schedule::layer_major;
    require_conforming_in_part(context, problem);
  }
}
const Register kOf256{{"shape.heads_of_256", kAttention, "attention", Lane::shape, true, heads_of_256}};

void groups_of_16(Context& context) {
  for (const DType type : context.types({DType::f32, DType::f16, DType::bf16})) {
    Problem problem =
        production(context, type, {.query = 32, .kv = 2, .d = 64, .dv = 64},
                   {.chunk = 256, .local = 128, .heavy = 200}, {Step::prefill(2 * 256 + 1), Step::decode(2)});
    require_conforming_in_part(context, problem, {.whole_head_of = 8});
  }
}
const Register kGroups{
    {"shape.groups_of_16", {"LOGIT-1", "MEM-6"}, "attention", Lane::shape, true, groups_of_16}};

void heads_32_over_8(Context& context) {
  Problem problem =
      production(context, DType::bf16, {.query = 32, .kv = 8, .d = 128, .dv = 128},
                 {.chunk = 256, .local = 128, .heavy = 127}, {Step::prefill(4 * 256 + 33), Step::decode(1)});
  require_conforming_in_part(context, problem, {.whole_head_of = 8});
}
const Register k32Over8{
    {"shape.heads_32_over_8", {"LOGIT-1", "MEM-6"}, "attention", Lane::shape, true, heads_32_over_8}};

void heads_128(Context& context) {
  Problem problem =
      production(context, DType::f32, {.query = 128, .kv = 16, .d = 64, .dv = 64},
                 {.chunk = 256, .local = 64, .heavy = 64}, {Step::prefill(4 * 256 + 31), Step::decode(1)});
  problem.options.schedule = Schedule::chunk_major;
  require_conforming_in_part(context, problem, {.whole_head_of = 32, .border = 128});
}
const Register k128{{"shape.heads_128", {"LOGIT-1", "MEM-6"}, "attention", Lane::shape, true, heads_128}};

// One call of more rows than any window holds, cut into batches; then another turn.
void batches(Context& context) {
  for (const Schedule schedule : {Schedule::layer_major, Schedule::chunk_major}) {
    Problem problem = production(
        context, schedule == Schedule::layer_major ? DType::bf16 : DType::f32,
        {.query = 2, .kv = 2, .d = 64, .dv = 64}, {.chunk = 256, .local = 100, .heavy = 100},
        {Step::prefill(5000), Step::prefill(4100), Step::decode(1), Step::prefill(1500), Step::decode(1)});
    problem.options.batch = 1024;
    problem.options.schedule = schedule;
    require_conforming_in_part(context, problem, {.whole_head_of = 2});
  }
  // Windows of more chunks than there are heads and threads to share. A batch of more than a window of 4096 rows, and of
  // no multiple of S: the short last chunk begins a window, and ends it.
  for (const DType type : context.types({DType::f32, DType::f16, DType::bf16})) {
    Problem problem = production(context, type, {.query = 3, .kv = 1, .d = 32, .dv = 32},
                                 {.chunk = 96, .local = 30, .heavy = 60}, {Step::prefill(4500)});
    problem.options.batch = 4100;
    problem.options.threads = 5;
    require_conforming_in_part(context, problem, {.whole_head_of = 3});
  }
  // Windows with more rows of all key/value heads than 2^16: of more threads than heads fill.
  Problem problem = production(context, DType::f16, {.query = 17, .kv = 17, .d = 8, .dv = 8},
                               {.chunk = 512, .local = 30, .heavy = 60}, {Step::prefill(4100)});
  problem.options.batch = 4096;
  problem.options.threads = 40;
  require_conforming_in_part(context, problem, {.whole_head_of = 17, .border = 128});
}
const Register kBatches{
    {"shape.batches", {"PLAN-1", "SCHED-1", "STATE-2"}, "schedule", Lane::shape, true, batches}};

// Beyond 8192, 16384 and 32768 positions; then a dense turn of several groups of rows and decode steps of one and more
// rows over all of them.
void positions_beyond_2_15(Context& context) {
  for (const DType type : context.types({DType::f32, DType::bf16})) {
    const Problem problem = production(context, type, {.query = 2, .kv = 1, .d = 64, .dv = 64},
                                       {.chunk = 512, .local = 64, .heavy = 64},
                                       {Step::prefill(33000), Step::decode(1), Step::prefill(300),
                                        Step::decode(2), Step::decode(5), Step::decode(64)});
    const auto near_a_power_of_two = [](const Chunk& chunk) {
      return chunk.mode != ChunkMode::sparse || chunk.begin == 8192 || chunk.begin == 16384 ||
             chunk.end >= 32768;
    };
    require_conforming_in_part(context, problem, {.chunk = near_a_power_of_two, .border = 8});
  }
}
const Register k2To15{{"shape.positions_beyond_32768",
                       {"MEM-2", "SCORE-6", "DEC-1"},
                       "session",
                       Lane::shape,
                       true,
                       positions_beyond_2_15}};

// Beyond 65536 positions, and beyond what a decode step of one row splits into parts that fit its buffers at once; then
// a dense turn.
void positions_beyond_2_17(Context& context) {
  for (const DType type : context.types({DType::f32, DType::bf16})) {
    Problem problem = production(
        context, type, {.query = 1, .kv = 1, .d = 16, .dv = 16}, {.chunk = 600, .local = 32, .heavy = 96},
        {Step::prefill(65000), Step::prefill(67500), Step::decode(3), Step::prefill(590)});
    draw_to(problem, 100, 4096);
    problem.options.softcap = 30.0;
    problem.options.alibi = {1e-5f};
    const auto late = [](const Chunk& chunk) {
      return (chunk.end > 65536 && chunk.begin < 67000) || chunk.end > 132000;
    };
    require_conforming_in_part(context, problem, {.chunk = late});
  }
}
const Register k2To17{{"shape.positions_beyond_131072",
                       {"MEM-2", "SCORE-6", "DEC-1"},
                       "session",
                       Lane::shape,
                       true,
                       positions_beyond_2_17}};

// The step of two rows crosses 20480: a page ends there, and the 64 splits of engine `cuda` become longer.
void decode_after_20000(Context& context) {
  for (const DType type : context.types({DType::f32, DType::f16, DType::bf16})) {
    const Heads heads = type == DType::bf16 ? Heads{.query = 8, .kv = 1, .d = 64, .dv = 64}
                                            : Heads{.query = 2, .kv = 1, .d = 128, .dv = 128};
    const Problem problem = production(
        context, type, heads, {.chunk = 128, .local = 16, .heavy = 16},
        {Step::prefill(20478), Step::decode(1), Step::decode(2), Step::decode(5), Step::decode(64)});
    const auto decoded = [](const Chunk& chunk) { return chunk.mode == ChunkMode::decode; };
    require_conforming_in_part(context, problem, {.chunk = decoded, .border = 8});
  }
}
const Register kDecode{
    {"shape.decode_after_20000", {"DEC-1", "STATE-6"}, "dense", Lane::shape, true, decode_after_20000}};

// Over more tokens than a decode step splits into parts of one buffer each, with value rows of more than 128 elements, caps,
// biases and sinks; the rows of a step see windows that begin on both sides of a multiple of 256.
void decode_after_2_17(Context& context) {
  require_claim(*context.engine, &Claims::rows_alone, "rows_alone");  // a fast way to store so many
  for (const DType type : context.types({DType::f32, DType::bf16})) {
    Problem problem = production(
        context, type, {.query = 2, .kv = 1, .d = 16, .dv = 136}, {},
        {Step::decode(137000), Step::decode(1), Step::decode(2), Step::decode(5), Step::decode(20)});
    problem.options.softcap = 15.0;
    problem.options.alibi = {0.0f, 1e-4f};
    problem.options.sinks = {6.0f, 1.0f};
    if (type == DType::bf16 && context.engine->claims().layers) problem.options.layers = {{.window = 302}};
    const std::unique_ptr<Session> session = context.engine->open(problem.shape, problem.options);
    store_step(*session, problem, problem.steps[0]);
    Trace trace = run_steps(*session, problem, 1, problem.steps.size());
    // Rows that nothing was asked of come first.
    std::vector<float>& out = trace.layers[0].out;
    out.insert(out.begin(), static_cast<std::size_t>(problem.steps[0].n * problem.out_row(0)), 0.0f);
    require_forced_in_part(context, problem, trace, {.border = 1});
  }
}
const Register kDecodeAfter2To17{{"shape.decode_after_137000",
                                  {"DEC-1", "DEC-2", "MASK-2"},
                                  "dense",
                                  Lane::shape,
                                  true,
                                  decode_after_2_17}};

// Caps, biases and sinks in every tile and segment of both passes, of dense attention and of decode steps.
void caps_and_biases(Context& context) {
  for (const DType type : context.types({DType::f32, DType::f16, DType::bf16})) {
    for (const bool dense : {false, true}) {
      const Rule rule{.chunk = 1024, .local = 200, .heavy = 300};
      Problem problem =
          production(context, type, {.query = 2, .kv = 1, .d = 64, .dv = 64}, rule,
                     {Step::prefill(2 * 1024 + 333), Step::decode(1), Step::prefill(600), Step::decode(3)});
      problem.options.dense = dense;
      problem.options.softcap = 20.0;
      problem.options.alibi = {0.002f, 0.0001f};
      problem.options.sinks = {2.0f, -1.0f};
      require_conforming_in_part(context, problem, {.border = 64});
    }
  }
}
const Register kCapsAndBiases{{"shape.caps_and_biases",
                               {"LOGIT-2", "LOGIT-3", "LOGIT-4"},
                               "logits",
                               Lane::shape,
                               true,
                               caps_and_biases}};

// Dense attention over more keys than a segment, a split and a window hold.
void dense(Context& context) {
  for (const DType type : context.types({DType::f32, DType::f16, DType::bf16})) {
    Problem problem = production(context, type, {.query = 2, .kv = 1, .d = 64, .dv = 64}, {},
                                 {Step::prefill(4200), Step::prefill(200), Step::decode(3)});
    problem.options.dense = true;
    require_conforming_in_part(context, problem, {.border = 64});
  }
}
const Register kDense{{"shape.dense", {"DEC-1", "CFG-2"}, "dense", Lane::shape, true, dense}};

// Rows whose element and byte offsets pass 2^31 and 2^32. Their memory is reserved and not touched.
void offsets_beyond_2_32(Context& context) {
  for (const bool of_values : {false, true}) {
    Problem problem;
    if (context.quick) throw Skipped("sizes of gigabytes run without --quick only");
    problem.shape.n_layer = 9;
    problem.shape.n_head = problem.shape.n_head_kv = 8;
    problem.shape.d_head = of_values ? 1 : 256;
    problem.shape.d_value = of_values ? 256 : 1;
    problem.shape.kv_type = problem.q_type = problem.k_type = problem.v_type = DType::bf16;
    problem.options.chunk = 16;
    problem.options.local = 5;
    problem.options.heavy = 5;
    problem.options.threads = context.threads;
    problem.steps = {Step::prefill(33), Step::decode(1)};
    problem.shape.capacity = 120000;
    problem.options.page = 256 * 480;  // one page, of more than 2^32 bytes
    Random random(context.seed);
    problem.fill_normal(random);
    require_conforming(context, problem);
  }
}
const Register kOffsets{
    {"shape.offsets_beyond_2_32", {"STATE-6", "MEM-6"}, "session", Lane::shape, true, offsets_beyond_2_32}};

// Rows wider than what is converted at a time, handed over in another type than they are stored in.
void wide_rows(Context& context) {
  // As in a latent cache: one key/value head for all query heads.
  for (const DType type : context.types({DType::f32, DType::bf16})) {
    const Problem problem =
        production(context, type, {.query = 5, .kv = 1, .d = 576, .dv = 512},
                   {.chunk = 256, .local = 100, .heavy = 150}, {Step::prefill(600), Step::decode(2)});
    require_conforming_in_part(context, problem);
  }
  for (const DType type : context.types({DType::f32, DType::f16, DType::bf16})) {
    Problem problem =
        production(context, type, {.query = 2, .kv = 1, .d = 513, .dv = 257},
                   {.chunk = 64, .local = 16, .heavy = 16}, {Step::prefill(150), Step::decode(1)});
    problem.k_type = problem.v_type = type == DType::f32 ? DType::bf16 : DType::f32;
    Random random(context.seed);
    problem.fill_normal(random);
    require_conforming(context, problem);
  }
}
const Register kWideRows{
    {"shape.wide_rows", {"STATE-6", "LOGIT-1"}, "session", Lane::shape, true, wide_rows}};

// The same bits with 1, 2, 3 and 7 threads and in both schedules, as far as the engine claims it.
void same_bits(Context& context) {
  const Claims claims = context.engine->claims();
  for (const DType type : context.types({DType::f32, DType::bf16})) {
    Problem problem = production(context, type, {.query = 2, .kv = 1, .d = 128, .dv = 128}, {},
                                 {Step::prefill(2 * 1024 + 33), Step::decode(5)});
    problem.options.threads = 1;
    const Trace one = run(*context.engine, problem);
    for (const int threads : {2, 3, 7}) {
      if (!claims.bitwise_threads) break;
      problem.options.threads = threads;
      require_same(one, run(*context.engine, problem), "threads 1 and " + std::to_string(threads));
    }
    problem.options.schedule = Schedule::chunk_major;
    require_same(one, run(*context.engine, problem), "layer-major and chunk-major", claims.bitwise_schedules);
  }
}
const Register kSameBits{{"shape.same_bits", {"NUM-3", "SCHED-2"}, "session", Lane::shape, true, same_bits}};

}  // namespace
}  // namespace headwater::conformance
