#include "cli/commands/attend/flags.hpp"

#include <limits>

#include "cli/support/arguments.hpp"
#include "cli/support/attention_flags.hpp"

namespace headwater::cli {
namespace {

constexpr std::int64_t kMostRepeats = 1000;

constexpr const char* kFooter = R"(
IN holds the tensors q [n,Hq,d], k [n,Hkv,d] and v [n,Hkv,dv] in F32, F16 or BF16 (k and v in the same type), and may
hold sinks [Hq] and alibi [Hq] in F32. OUT gets out, lse, scores, chunk_start, colsum_intra and the trace: memory, the
set of positions that each chunk read, and colsum_inter. With another rule than h2o the trace is query_blocks [B,2], the
rows that share a set, block_sets [B,Hkv,M], what they read, and block_votes (not with --select sketches) and token_votes,
from which the sets follow; scores and column sums are 0, memory and colsum_inter have no entries.

Example: sparse prefill of a real trace, in chunks of 512 tokens that read 256 older ones
  headwater attend models/trace-layer6.safetensors -o out.safetensors -b 2048 -ub 512 --h2o-local 128 --h2o-heavy 128
Example: a turn of 4000 tokens in two calls, one decode step, a second turn
  headwater attend IN.safetensors -o OUT.safetensors --steps p2048:4000,p1952,d1,p900

Exit status: 0 done, 2 bad usage or bad input, 3 engine not available.)";

}  // namespace

std::optional<AttendFlags> parse_attend_flags(const std::vector<std::string>& arguments) {
  AttendFlags flags;
  Options& options = flags.options;
  constexpr double kLeast = std::numeric_limits<double>::lowest();
  constexpr double kMost = std::numeric_limits<double>::max();
  FlagSet set("Chunked sparse prefill attention with heavy hitters (H2O) on tensors dumped to a file.",
              "headwater attend", kFooter);
  set.file("IN", "IN", "", "input tensors, a safetensors file", flags.input)->required();
  set.file("-o,--output", "--output", "OUT", "where to write, a safetensors file; - is standard output",
           flags.output)
      ->required();
  declare_memory_sets(set, options);
  set.flag("--dense", options.dense, "dense causal attention, the same as L = H = 0");
  set.value("--steps", "LIST",
            "pN (prefill), pN:T (opens a turn of T), dN (decode), with commas between (pN of all)",
            [&](const std::string& text) { flags.steps = text; });
  set.real("--scale", kLeast, kMost, "factor of the logits (1/sqrt(d))", options.scale);
  set.real("--softcap", 0, kMost, "soft cap of the logits, 0 for none (0)", options.softcap);
  set.choice("--score-type", "TYPE", "of stored scores: bf16 or f32 (bf16)", "bf16 or f32",
             {{"bf16", ScoreType::bf16}, {"f32", ScoreType::f32}}, options.score_type);
  declare_schedule(set, options);
  declare_engine(set, flags.engine);
  declare_threads(set, options);
  set.integer("--repeat", "--repeat", 1, kMostRepeats, "timed runs from an empty session (1)", flags.repeat);
  set.flag("--no-trace", flags.trace, "leave sets, votes and colsum_inter out of OUT", false);
  set.quiet(flags.quiet);
  set.json(flags.json);
  set.check([&] { check_output_beside_json(flags.output, flags.json); });
  set.check([&] { check_dense_layers(options, 1); });
  if (!set.parse(arguments)) return std::nullopt;
  return flags;
}

}  // namespace headwater::cli
