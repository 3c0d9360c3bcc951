#include "cli/commands/attend/flags.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>

#include "cli/support/arguments.hpp"
#include "cli/support/failure.hpp"
#include "cli/support/numbers.hpp"
#include "cli/support/text.hpp"

namespace headwater::cli {
namespace {

constexpr std::int64_t kMostThreads = 512;
constexpr std::int64_t kMostRepeats = 1000;

constexpr const char* kFooter = R"(
IN holds the tensors q [n,Hq,d], k [n,Hkv,d] and v [n,Hkv,dv] in F32, F16 or BF16 (k and v in the same type), and may
hold sinks [Hq] and alibi [Hq] in F32. OUT gets out, lse, scores, chunk_start, colsum_intra and the trace: memory, the
set of positions that each chunk read, and colsum_inter.

Example: sparse prefill of a real trace, in chunks of 512 tokens that read 256 older ones
  headwater attend models/trace-layer6.safetensors -o out.safetensors -b 2048 -ub 512 --h2o-local 128 --h2o-heavy 128
Example: a turn of 4000 tokens in two calls, one decode step, a second turn
  headwater attend IN.safetensors -o OUT.safetensors --steps p2048:4000,p1952,d1,p900

Exit status: 0 done, 2 bad usage or bad input, 3 engine not available.)";

Schedule parse_schedule(std::string_view text) {
  if (text == "layer-major" || text == "layer") return Schedule::layer_major;
  if (text == "chunk-major" || text == "chunk") return Schedule::chunk_major;
  throw Failure(
      fmt::format("--schedule: {} is not allowed; use layer-major or chunk-major", in_quotes(text)));
}

ScoreType parse_score_type(std::string_view text) {
  if (text == "bf16") return ScoreType::bf16;
  if (text == "f32") return ScoreType::f32;
  throw Failure(fmt::format("--score-type: {} is not allowed; use bf16 or f32", in_quotes(text)));
}

/// The values as they were written; the types come afterwards, in our own words.
struct Texts {
  std::string batch, chunk, local, heavy, threads, scale, softcap, score_type, schedule, steps, repeat,
      engine;
};

void check_names(const AttendFlags& flags) {
  if (flags.input.empty()) throw Failure("IN: '' is no name of a file");
  if (flags.output.empty()) throw Failure("--output: '' is no name of a file");
  check_output_beside_json(flags.output, flags.json);
}

}  // namespace

std::optional<AttendFlags> parse_attend_flags(const std::vector<std::string>& arguments) {
  AttendFlags flags;
  Texts texts;
  bool no_clamp = false;
  bool no_trace = false;
  CLI::App app("Chunked sparse prefill attention with heavy hitters (H2O) on tensors dumped to a file.",
               "headwater attend");
  app.footer(kFooter);
  app.add_option("IN", flags.input, "input tensors, a safetensors file")->required()->type_name("");
  app.add_option("-o,--output", flags.output, "where to write, a safetensors file; - is standard output")
      ->required()
      ->type_name("OUT");
  const auto value = [&](const char* name, std::string& text, const char* type, const char* help) {
    return app.add_option(name, text, help)->type_name(type);
  };
  const auto* batch = value("-b,--batch,--batch-size", texts.batch, "N",
                            "B, logical batch: tokens of one prefill call (4096)");
  const auto* chunk = value("--ubatch-size,--chunk", texts.chunk, "N",
                            "S, chunk: tokens with full causal attention; also -ub (1024)");
  const auto* local =
      value("--h2o-local", texts.local, "N", "L, newest tokens always kept in the memory set (256)");
  const auto* heavy = value("--h2o-heavy", texts.heavy, "N", "H, tokens kept because of their score (256)");
  app.add_flag("--h2o-no-clamp", no_clamp, "let L + H be S or more");
  app.add_flag("--dense", flags.options.dense, "dense causal attention, the same as L = H = 0");
  const auto* steps =
      value("--steps", texts.steps, "LIST",
            "pN (prefill), pN:T (opens a turn of T), dN (decode), with commas between (pN of all)");
  const auto* scale = value("--scale", texts.scale, "X", "factor of the logits (1/sqrt(d))");
  const auto* softcap = value("--softcap", texts.softcap, "X", "soft cap of the logits, 0 for none (0)");
  const auto* score_type =
      value("--score-type", texts.score_type, "TYPE", "of stored scores: bf16 or f32 (bf16)");
  const auto* schedule =
      value("--schedule", texts.schedule, "NAME", "layer-major or chunk-major (layer-major)");
  const auto* engine =
      value("--engine", texts.engine, "NAME", "see `headwater info`; overrides HEADWATER_ENGINE");
  const auto* threads = value("-t,--threads", texts.threads, "N", "0 means all usable cores (0)");
  const auto* repeat = value("--repeat", texts.repeat, "N", "timed runs from an empty session (1)");
  app.add_flag("--no-trace", no_trace, "leave memory and colsum_inter out of OUT");
  add_quiet(app, flags.quiet);
  app.add_flag("--json", flags.json, "one JSON object on standard output");

  if (!parse_arguments(app, arguments)) return std::nullopt;
  check_names(flags);

  Options& options = flags.options;
  const auto integer = [](const CLI::Option* option, const char* name, const std::string& text,
                          std::int64_t low, std::int64_t high, auto& result) {
    using Integer = std::remove_reference_t<decltype(result)>;
    if (option->count() > 0) result = static_cast<Integer>(parse_integer(name, text, low, high));
  };
  integer(batch, "-b (--batch)", texts.batch, 1, kMaxCount, options.batch);
  integer(chunk, "-ub (--chunk)", texts.chunk, 1, kMaxCount, options.chunk);
  integer(local, "--h2o-local", texts.local, 0, kMaxCount, options.local);
  integer(heavy, "--h2o-heavy", texts.heavy, 0, kMaxCount, options.heavy);
  integer(threads, "-t (--threads)", texts.threads, 0, kMostThreads, options.threads);
  integer(repeat, "--repeat", texts.repeat, 1, kMostRepeats, flags.repeat);
  if (no_clamp && !options.dense && options.local + options.heavy > kMaxCount) {
    throw Failure(fmt::format("--h2o-local {} and --h2o-heavy {} make {} together; allowed are {}",
                              options.local, options.heavy, options.local + options.heavy, kMaxCount));
  }
  if (scale->count() > 0) options.scale = parse_real("--scale", texts.scale);
  if (softcap->count() > 0) options.softcap = parse_real("--softcap", texts.softcap, 0.0);
  if (score_type->count() > 0) options.score_type = parse_score_type(texts.score_type);
  if (schedule->count() > 0) options.schedule = parse_schedule(texts.schedule);
  if (steps->count() > 0) flags.steps = texts.steps;
  if (engine->count() > 0) {
    if (texts.engine.empty())
      throw Failure("--engine: '' is not allowed; use a name that `headwater info` lists");
    flags.engine = texts.engine;
  }
  options.clamp = !no_clamp;
  flags.trace = !no_trace;
  return flags;
}

}  // namespace headwater::cli
