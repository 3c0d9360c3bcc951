#include "cli/commands/bench/flags.hpp"

#include "cli/support/attention_flags.hpp"

namespace headwater::bench {

namespace {

using cli::kMaxCount;

constexpr std::int64_t kMostHeads = 65536;
constexpr std::int64_t kMostWidth = 65536;
constexpr std::int64_t kMostRounds = 1000;

constexpr const char* kFooter = R"(
One layer of attention over random rows: sparse prefill and dense attention by the same engine, and a loop of
multiply-adds on registers alone, take turns in every round. Both runs are checked against the oracle on the same rows
before they are timed. Useful GFLOP/s count 2 d + 2 dv for each visible pair of query and key, and nothing else; what
the share of the peak leaves out are exponentials, column sums, selection and gather. Other work on the machine slows
everything: on one thread rates and ratios are taken of processor times, which it does not move; on more compare ratios,
not times.

With -m MODEL or --random SHAPE a whole model is timed instead: headwater bench --random qwen3-0.6b --help.

Example: a prompt of 16384 tokens in BF16 on two threads
  headwater bench -n 16384 --heads 16 --kv-heads 8 -d 128 --dtype bf16 -t 2

Exit status: 0 done, 1 a result is wrong, 2 bad usage, 3 engine not available.)";

}  // namespace

std::optional<Flags> parse_flags(const std::vector<std::string>& arguments) {
  Flags flags;
  Shape& shape = flags.shape;
  Options& options = flags.options;
  shape.capacity = 4096;
  shape.n_head = 16;
  shape.n_head_kv = 8;
  shape.d_head = 128;
  shape.d_value = 0;
  cli::FlagSet set("Sparse prefill against dense attention on your shape and machine.", "headwater bench",
                   kFooter);
  set.integer("-n,--tokens", "-n (--tokens)", 1, kMaxCount, "tokens of the prompt (4096)", shape.capacity);
  set.integer("--heads", "--heads", 1, kMostHeads, "query heads (16)", shape.n_head);
  set.integer("--kv-heads", "--kv-heads", 1, kMostHeads, "key/value heads, a divisor of --heads (8)",
              shape.n_head_kv);
  set.integer("-d,--d-head", "-d (--d-head)", 1, kMostWidth, "elements of a query or key row (128)",
              shape.d_head);
  set.integer("--d-value", "--d-value", 1, kMostWidth, "elements of a value row (as --d-head)",
              shape.d_value);
  set.choice("--dtype", "TYPE", "of the rows: f32, f16 or bf16 (f32)", "f32, f16 or bf16",
             {{"f32", DType::f32}, {"f16", DType::f16}, {"bf16", DType::bf16}}, shape.kv_type);
  cli::declare_memory_sets(set, options);
  cli::declare_schedule(set, options);
  cli::declare_engine(set, flags.engine);
  cli::declare_threads(set, options);
  set.integer("--rounds", "--rounds", 1, kMostRounds, "timed rounds (7)", flags.rounds);
  set.integer("--seed", "--seed", 0, kMaxCount, "of the rows (1)", flags.seed);
  set.flag("--no-dense", flags.dense, "time the sparse run alone", false);
  set.json(flags.json);
  set.check([&] { cli::check_dense_layers(options, 1); });
  if (!set.parse(arguments)) return std::nullopt;
  if (shape.d_value == 0) shape.d_value = shape.d_head;
  return flags;
}

}  // namespace headwater::bench
