#include "cli/support/attention_flags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "cli/support/failure.hpp"
#include "cli/support/numbers.hpp"

namespace headwater::cli {
namespace {

constexpr std::int64_t kMostThreads = 512;
constexpr std::int64_t kMostLayers = 65536;  // Shape::n_layer

enum class Rule : std::uint8_t { h2o, blocks, sketches, window };

Rule rule_of(Select select) {
  if (select == Select::blocks) return Rule::blocks;
  return select == Select::sketches ? Rule::sketches : Rule::h2o;
}

std::string name_of(Rule rule) {
  constexpr const char* kNames[] = {"h2o", "blocks", "sketches", "window"};
  return kNames[static_cast<int>(rule)];
}

/// A flag of a rule.
struct SizeFlag {
  const char* name;
  CLI::Option* option;
  [[nodiscard]] bool given() const { return option->count() > 0; }
};

/// The sizes of rules `blocks` and `sketches`.
struct SizeFlags {
  SizeFlag key_block, query_block, pool, refine, least_weight;
};

[[noreturn]] void refuse(const char* flag, std::int64_t value, const std::string& allowed) {
  throw Failure(fmt::format("{}: {} is not allowed; use {}", flag, value, allowed));
}

/// Where the rule is a default, a query block that was not given shrinks to the chunk.
void fit_query_block(const SizeFlags& flags, Options& options) {
  if (!flags.query_block.given()) options.query_block = std::min(options.query_block, options.chunk);
}

/// The same of all sizes of rule `blocks`, which fit each other and the budget, too.
void fit_sizes(const SizeFlags& flags, bool pinned_given, Options& options) {
  fit_query_block(flags, options);
  if (!flags.pool.given()) options.pool = std::gcd(options.pool, options.query_block);
  if (!flags.key_block.given()) {
    options.key_block =
        std::gcd(std::gcd(options.key_block, options.heavy), pinned_given ? options.pinned : 0);
    while (options.key_block > options.chunk) options.key_block /= 2;
  }
}

/// Pinned tokens by default are whole key blocks of the budget.
void fit_pinned(Options& options) {
  const std::int64_t block = options.key_block;
  options.pinned =
      std::min((options.pinned + block - 1) / block * block, options.heavy - options.heavy % block);
}

std::string up_to_chunk(const Options& options) {
  return fmt::format("a number up to {}, the chunk (-ub)", options.chunk);
}

/// SKE-1, and the same of SEL-1, in the words of the flags.
void check_query_block(const Options& options) {
  if (options.query_block > options.chunk) refuse("--query-block", options.query_block, up_to_chunk(options));
}

/// SEL-1, in the words of the flags.
void check_sizes(const Options& options) {
  if (options.key_block > options.chunk) refuse("--key-block", options.key_block, up_to_chunk(options));
  check_query_block(options);
  if (options.query_block % options.pool != 0) {
    refuse("--pool", options.pool, fmt::format("a divisor of --query-block {}", options.query_block));
  }
  if (options.heavy % options.key_block != 0) {
    refuse("--h2o-heavy", options.heavy, fmt::format("a multiple of --key-block {}", options.key_block));
  }
  if (options.pinned % options.key_block != 0) {
    refuse("--pinned", options.pinned, fmt::format("a multiple of --key-block {}", options.key_block));
  }
}

/// CFG-5, in the words of the flags.
void check_pinned(const Options& options) {
  if (options.pinned <= options.heavy) return;
  refuse("--pinned", options.pinned, fmt::format("a number up to --h2o-heavy {}", options.heavy));
}

/// The newest of L + H tokens: key blocks of one key, so that Local begins where it should (SEL-2), and places for what is
/// pinned alone, so that votes change nothing.
void select_window(Options& options) {
  const std::int64_t all = std::min(options.local + options.heavy, kMaxCount);
  if (options.pinned > all) {
    refuse("--pinned", options.pinned,
           fmt::format("a number up to {}, --h2o-local and --h2o-heavy together", all));
  }
  options.local = all - options.pinned;
  // Where CFG-3 clamps, it is the newest tokens that become fewer.
  if (options.clamp && options.pinned > 0 && all >= options.chunk) {
    options.local = std::max<std::int64_t>(0, options.chunk - 1 - options.pinned);
  }
  options.heavy = all - options.local;
  options.key_block = 1;
  options.query_block = options.pool = options.chunk;
  options.refine = 1;
}

[[noreturn]] void refuse_size(const SizeFlag& flag, const char* of, Rule rule) {
  throw Failure(
      fmt::format("{} is a size of --select {}, and the rule is {}; leave it out, or use --select {}",
                  flag.name, of, name_of(rule), of));
}

void declare_rule(FlagSet& set, const CLI::Option* pinned, Options& options) {
  const auto rule = std::make_shared<Rule>(rule_of(options.select));
  const CLI::Option* const select = set.choice(
      "--select", "RULE",
      "tokens of a memory set: h2o, by score, for each chunk; blocks, by the queries of a query block; "
      "sketches, by the queries, too, but token by token and none of little weight; window, the newest L + "
      "H, the pinned ones "
      "among them (" +
          name_of(*rule) + ")",
      "h2o, blocks, sketches or window",
      {{"h2o", Rule::h2o}, {"blocks", Rule::blocks}, {"sketches", Rule::sketches}, {"window", Rule::window}},
      *rule);
  const auto size = [&](const char* name, std::int64_t high, const std::string& help, std::int64_t& to) {
    return SizeFlag{name, set.integer(name, name, 1, high, help, to)};
  };
  constexpr std::int64_t kMostKeys = 256;
  constexpr std::int64_t kMostRefine = 16;
  const SizeFlags sizes{
      size("--key-block", kMostKeys,
           fmt::format("keys of a key block, with --select blocks ({})", options.key_block),
           options.key_block),
      size("--query-block", kMaxCount,
           fmt::format("rows that share a set, with --select blocks or sketches ({})", options.query_block),
           options.query_block),
      size("--pool", kMaxCount,
           fmt::format("rows whose mean votes, half as many on single keys; with --select blocks ({})",
                       options.pool),
           options.pool),
      size("--refine", kMostRefine,
           fmt::format(
               "tokens are chosen from N times as many; 1: whole key blocks; with --select blocks ({})",
               options.refine),
           options.refine),
      {"--least-weight",
       set.real(
           "--least-weight", 0, 1,
           fmt::format("tokens of less weight, where a row has 1 without them, are not chosen; 0: all may "
                       "be; with --select sketches ({:g})",
                       options.least_weight),
           options.least_weight)}};
  set.check([&options, rule, select, pinned, sizes] {
    const bool pinned_given = pinned->count() > 0;
    const bool asked = select->count() > 0;
    if (!asked) *rule = rule_of(options.select);  // of --quality
    if (*rule != Rule::sketches && sizes.least_weight.given())
      refuse_size(sizes.least_weight, "sketches", *rule);
    if (*rule == Rule::blocks) {
      options.select = Select::blocks;
      if (!asked) fit_sizes(sizes, pinned_given, options);
      if (!pinned_given) fit_pinned(options);
      check_pinned(options);
      check_sizes(options);
      return;
    }
    for (const SizeFlag& flag : {sizes.key_block, sizes.pool, sizes.refine}) {
      if (flag.given()) refuse_size(flag, "blocks", *rule);
    }
    if (*rule == Rule::sketches) {
      options.select = Select::sketches;
      if (!asked) fit_query_block(sizes, options);
      if (!pinned_given) options.pinned = std::min(options.pinned, options.heavy);
      check_pinned(options);
      check_query_block(options);
      if (options.least_weight == 1)
        throw Failure("--least-weight: 1 is not allowed; use 0 or more, below 1");
      return;
    }
    if (sizes.query_block.given()) refuse_size(sizes.query_block, "blocks", *rule);
    options.select = Select::h2o;
    if (*rule == Rule::h2o) {
      if (!pinned_given) options.pinned = 0;  // the plan's
      check_pinned(options);
      return;
    }
    options.select = Select::blocks;
    if (!pinned_given) options.pinned = std::min(options.pinned, options.local + options.heavy);
    select_window(options);
  });
}

/// STATE-7: ascending.
std::vector<std::int64_t> parse_layers(const std::string& text) {
  constexpr const char* kFlag = "--dense-layers";
  std::vector<std::int64_t> layers = parse_numbers(kFlag, text, kMostLayers - 1);
  std::sort(layers.begin(), layers.end());
  if (const auto twice = std::adjacent_find(layers.begin(), layers.end()); twice != layers.end()) {
    throw Failure(fmt::format("{}: layer {} is given twice; allowed is once", kFlag, *twice));
  }
  return layers;
}

}  // namespace

void check_dense_layers(const Options& options, std::int64_t layers) {
  if (options.dense_layers.empty() || options.dense_layers.back() < layers) return;
  throw Failure(fmt::format("--dense-layers: {} is not a layer; allowed are 0 to {}",
                            options.dense_layers.back(), layers - 1));
}

void declare_memory_sets(FlagSet& set, Options& options) {
  set.integer("-b,--batch,--batch-size", "-b (--batch)", 1, kMaxCount,
              "B, logical batch: tokens of one prefill call (4096)", options.batch);
  set.integer("--ubatch-size,--chunk", "-ub (--chunk)", 1, kMaxCount,
              "S, chunk: tokens with full causal attention; also -ub (1024)", options.chunk);
  set.integer("--h2o-local", "--h2o-local", 0, kMaxCount,
              fmt::format("L, newest tokens always kept in the memory set ({})", options.local),
              options.local);
  set.integer("--h2o-heavy", "--h2o-heavy", 0, kMaxCount,
              fmt::format("H, tokens kept because of their score or votes ({})", options.heavy),
              options.heavy);
  set.flag("--h2o-no-clamp", options.clamp, "let L + H be S or more", false);
  const auto* const pinned = set.integer(
      "--pinned", "--pinned", 0, kMaxCount,
      fmt::format("first tokens that keep their places in the memory set, part of H ({})",
                  options.pinned > 0 ? fmt::format("{}; 0 with --select h2o", options.pinned) : "0"),
      options.pinned);
  set.value("--dense-layers", "LIST", "layers whose prefill is dense, as 0,3,8-11 (none)",
            [&options](const std::string& text) { options.dense_layers = parse_layers(text); });
  set.integer("--dense-below", "--dense-below", 0, kMaxCount, "prefill turns of fewer tokens are dense (0)",
              options.dense_below);
  set.check([&options] {
    if (options.clamp || options.dense || options.local + options.heavy <= kMaxCount) return;
    throw Failure(fmt::format("--h2o-local {} and --h2o-heavy {} make {} together; allowed are {}",
                              options.local, options.heavy, options.local + options.heavy, kMaxCount));
  });
  declare_rule(set, pinned, options);
}

void declare_schedule(FlagSet& set, Options& options) {
  set.choice("--schedule", "NAME", "layer-major or chunk-major (layer-major)", "layer-major or chunk-major",
             {{"layer-major", Schedule::layer_major},
              {"layer", Schedule::layer_major},
              {"chunk-major", Schedule::chunk_major},
              {"chunk", Schedule::chunk_major}},
             options.schedule);
}

void declare_engine(FlagSet& set, std::string& engine) {
  set.value("--engine", "NAME", "see `headwater info`; overrides HEADWATER_ENGINE",
            [&engine](const std::string& text) {
              if (text.empty())
                throw Failure("--engine: '' is not allowed; use a name that `headwater info` lists");
              engine = text;
            });
}

void declare_threads(FlagSet& set, Options& options) {
  set.integer("-t,--threads", "-t (--threads)", 0, kMostThreads, "0 means all usable cores (0)",
              options.threads);
}

}  // namespace headwater::cli
