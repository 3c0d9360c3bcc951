#include "cli/commands/bench/flags.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <deque>
#include <functional>
#include <string_view>
#include <utility>

#include "cli/support/arguments.hpp"
#include "cli/support/failure.hpp"
#include "cli/support/numbers.hpp"
#include "cli/support/text.hpp"

namespace headwater::bench {

namespace {

using cli::Failure;
using cli::kMaxCount;

constexpr std::int64_t kMostHeads = 65536;
constexpr std::int64_t kMostWidth = 65536;
constexpr std::int64_t kMostThreads = 512;
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

DType parse_type(std::string_view text) {
  if (text == "f32") return DType::f32;
  if (text == "f16") return DType::f16;
  if (text == "bf16") return DType::bf16;
  throw Failure(fmt::format("--dtype: {} is not allowed; use f32, f16 or bf16", cli::in_quotes(text)));
}

Schedule parse_schedule(std::string_view text) {
  if (text == "layer-major" || text == "layer") return Schedule::layer_major;
  if (text == "chunk-major" || text == "chunk") return Schedule::chunk_major;
  throw Failure(
      fmt::format("--schedule: {} is not allowed; use layer-major or chunk-major", cli::in_quotes(text)));
}

/// A flag whose value is read as text first: the type comes afterwards, in our own words.
class Values {
 public:
  explicit Values(CLI::App& app) : app_(app) {}

  void integer(const char* names, const char* spoken, std::int64_t low, std::int64_t high, const char* help,
               std::function<void(std::int64_t)> store) {
    text(names, "N", help,
         [=](const std::string& value) { store(cli::parse_integer(spoken, value, low, high)); });
  }
  void text(const char* names, const char* type, const char* help,
            std::function<void(const std::string&)> store) {
    auto& entry = entries_.emplace_back();
    entry.store = std::move(store);
    entry.option = app_.add_option(names, entry.value, help)->type_name(type);
  }
  void store() const {
    for (const Entry& entry : entries_) {
      if (entry.option->count() > 0) entry.store(entry.value);
    }
  }

 private:
  struct Entry {
    std::string value;
    const CLI::Option* option = nullptr;
    std::function<void(const std::string&)> store;
  };
  CLI::App& app_;
  std::deque<Entry> entries_;  // their addresses must hold
};

void require_sum(const Options& options) {
  if (options.clamp || options.local + options.heavy <= kMaxCount) return;
  throw Failure(fmt::format("--h2o-local {} and --h2o-heavy {} make {} together; allowed are {}",
                            options.local, options.heavy, options.local + options.heavy, kMaxCount));
}

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
  bool no_dense = false;
  bool no_clamp = false;

  CLI::App app("Sparse prefill against dense attention on your shape and machine.", "headwater bench");
  app.footer(kFooter);
  Values values(app);
  values.integer("-n,--tokens", "-n (--tokens)", 1, kMaxCount, "tokens of the prompt (4096)",
                 [&](std::int64_t n) { shape.capacity = n; });
  values.integer("--heads", "--heads", 1, kMostHeads, "query heads (16)",
                 [&](std::int64_t n) { shape.n_head = n; });
  values.integer("--kv-heads", "--kv-heads", 1, kMostHeads, "key/value heads, a divisor of --heads (8)",
                 [&](std::int64_t n) { shape.n_head_kv = n; });
  values.integer("-d,--d-head", "-d (--d-head)", 1, kMostWidth, "elements of a query or key row (128)",
                 [&](std::int64_t n) { shape.d_head = n; });
  values.integer("--d-value", "--d-value", 1, kMostWidth, "elements of a value row (as --d-head)",
                 [&](std::int64_t n) { shape.d_value = n; });
  values.text("--dtype", "TYPE", "of the rows: f32, f16 or bf16 (f32)",
              [&](const std::string& text) { shape.kv_type = parse_type(text); });
  values.integer("-b,--batch,--batch-size", "-b (--batch)", 1, kMaxCount, "B, logical batch in tokens (4096)",
                 [&](std::int64_t n) { options.batch = n; });
  values.integer("--ubatch-size,--chunk", "-ub (--chunk)", 1, kMaxCount,
                 "S, chunk: tokens with full causal attention; also -ub (1024)",
                 [&](std::int64_t n) { options.chunk = n; });
  values.integer("--h2o-local", "--h2o-local", 0, kMaxCount,
                 "L, newest tokens always in the memory set (256)",
                 [&](std::int64_t n) { options.local = n; });
  values.integer("--h2o-heavy", "--h2o-heavy", 0, kMaxCount, "H, tokens kept because of their score (256)",
                 [&](std::int64_t n) { options.heavy = n; });
  app.add_flag("--h2o-no-clamp", no_clamp, "let L + H be S or more");
  values.text("--schedule", "NAME", "layer-major or chunk-major (layer-major)",
              [&](const std::string& text) { options.schedule = parse_schedule(text); });
  values.text("--engine", "NAME", "see `headwater info`; overrides HEADWATER_ENGINE",
              [&](const std::string& text) {
                if (text.empty())
                  throw Failure("--engine: '' is not allowed; use a name that `headwater info` lists");
                flags.engine = text;
              });
  values.integer("-t,--threads", "-t (--threads)", 0, kMostThreads, "0 means all usable cores (0)",
                 [&](std::int64_t n) { options.threads = static_cast<int>(n); });
  values.integer("--rounds", "--rounds", 1, kMostRounds, "timed rounds (7)",
                 [&](std::int64_t n) { flags.rounds = static_cast<int>(n); });
  values.integer("--seed", "--seed", 0, kMaxCount, "of the rows (1)",
                 [&](std::int64_t n) { flags.seed = static_cast<std::uint64_t>(n); });
  app.add_flag("--no-dense", no_dense, "time the sparse run alone");
  app.add_flag("--json", flags.json, "one JSON object on standard output");

  if (!cli::parse_arguments(app, arguments)) return std::nullopt;
  values.store();
  if (shape.d_value == 0) shape.d_value = shape.d_head;
  flags.dense = !no_dense;
  options.clamp = !no_clamp;
  require_sum(options);
  return flags;
}

}  // namespace headwater::bench
