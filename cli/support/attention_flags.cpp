#include "cli/support/attention_flags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string_view>
#include <type_traits>
#include <vector>

#include "cli/support/failure.hpp"
#include "cli/support/numbers.hpp"
#include "headwater/detail/option_table.hpp"

namespace headwater::cli {
namespace {

constexpr std::int64_t kMostThreads = 512;
constexpr std::int64_t kMostLayers = 65536;  // Shape::n_layer

enum class Rule : std::uint8_t { h2o, blocks, sketches, window };  // those of Select, and window

Rule rule_of(Select select) { return static_cast<Rule>(select); }

std::string name_of(Rule rule) {
  constexpr const char* kNames[] = {"h2o", "blocks", "sketches", "window"};
  return kNames[static_cast<int>(rule)];
}

[[noreturn]] void refuse(const char* flag, std::int64_t value, const std::string& allowed) {
  throw Failure(fmt::format("{}: {} is not allowed; use {}", flag, value, allowed));
}

bool given(const CLI::App& app, const char* flag) { return app.count(flag) > 0; }

/// Where the rule is a default, sizes that were not given fit the chunk, each other and the budget.
void fit_sizes(const CLI::App& app, Options& options) {
  if (options.select == Select::h2o) return;
  if (!given(app, "--query-block")) options.query_block = std::min(options.query_block, options.chunk);
  if (options.select != Select::blocks) return;
  if (!given(app, "--pool")) options.pool = std::gcd(options.pool, options.query_block);
  if (!given(app, "--key-block")) {
    const std::int64_t pinned = given(app, "--pinned") ? options.pinned : 0;
    options.key_block = std::gcd(std::gcd(options.key_block, options.heavy), pinned);
    while (options.key_block > options.chunk) options.key_block /= 2;
  }
}

/// Pinned tokens by default: of the budget, with rule blocks in whole key blocks, and none with h2o, which is the plan's.
void fit_pinned(Options& options) {
  const std::int64_t block = options.select == Select::blocks ? options.key_block : 1;
  const std::int64_t blocks = std::min((options.pinned + block - 1) / block, options.heavy / block);
  options.pinned = options.select == Select::h2o ? 0 : blocks * block;
}

/// SEL-1 and SKE-1, in the words of the flags.
void check_up_to_chunk(const char* flag, std::int64_t value, const Options& options) {
  if (value > options.chunk)
    refuse(flag, value, fmt::format("a number up to {}, the chunk (-ub)", options.chunk));
}

/// The same of all sizes of the rule.
void check_sizes(const Options& options) {
  if (options.select == Select::blocks) check_up_to_chunk("--key-block", options.key_block, options);
  if (options.select != Select::h2o) check_up_to_chunk("--query-block", options.query_block, options);
  if (options.select == Select::sketches && options.least_weight == 1)
    throw Failure("--least-weight: 1 is not allowed; use 0 or more, below 1");
  if (options.select != Select::blocks) return;
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

/// Sizes that were given, and that the rule does not have.
void check_sizes_of_rule(const CLI::App& app, Rule rule) {
  detail::for_each_option(detail::Part::size, [&](const auto& option) {
    const bool has = rule != Rule::window && option.read_by(static_cast<Select>(rule));
    if (has || !given(app, option.flag.names)) return;
    const char* const of = option.read_by(Select::blocks) ? "blocks" : "sketches";
    throw Failure(
        fmt::format("{} is a size of --select {}, and the rule is {}; leave it out, or use --select {}",
                    option.flag.names, of, name_of(rule), of));
  });
}

void declare_part(FlagSet& set, detail::Part part, Options& options) {
  detail::for_each_option(part, [&](const auto& option) {
    const auto& [names, help, spoken] = option.flag;
    auto& to = options.*option.asked;
    const bool of_rule = option.name == std::string_view("pinned") && to > 0;
    const std::string text = fmt::format("{} ({}{})", help, to, of_rule ? "; 0 with --select h2o" : "");
    if constexpr (std::is_integral_v<std::remove_reference_t<decltype(to)>>) {
      set.integer(names, spoken == nullptr ? names : spoken, option.range.least, option.range.most, text, to);
    } else {
      set.real(names, option.range.least, option.range.most, text, to);
    }
  });
}

void declare_rule(FlagSet& set, Options& options) {
  const auto rule = std::make_shared<Rule>(rule_of(options.select));
  set.choice(
      "--select", "RULE",
      "tokens of a memory set: h2o, by score, for each chunk; blocks, by the queries of a query block; "
      "sketches, by the queries, too, but token by token and none of little weight; window, the newest L + "
      "H, the pinned ones "
      "among them (" +
          name_of(*rule) + ")",
      "h2o, blocks, sketches or window",
      {{"h2o", Rule::h2o}, {"blocks", Rule::blocks}, {"sketches", Rule::sketches}, {"window", Rule::window}},
      *rule);
  declare_part(set, detail::Part::size, options);
  set.check([&options, &app = set.app(), rule] {
    const bool asked = given(app, "--select");
    if (!asked) *rule = rule_of(options.select);  // of --quality
    check_sizes_of_rule(app, *rule);
    if (*rule == Rule::window) {
      options.select = Select::blocks;
      if (!given(app, "--pinned")) options.pinned = std::min(options.pinned, options.local + options.heavy);
      select_window(options);
      return;
    }
    options.select = static_cast<Select>(*rule);
    if (!asked) fit_sizes(app, options);
    if (!given(app, "--pinned")) fit_pinned(options);
    check_pinned(options);
    check_sizes(options);
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
  declare_part(set, detail::Part::plan, options);
  set.flag("--h2o-no-clamp", options.clamp, "let L + H be S or more", false);
  declare_part(set, detail::Part::exact, options);
  set.value("--dense-layers", "LIST", "layers whose prefill is dense, as 0,3,8-11 (none)",
            [&options](const std::string& text) { options.dense_layers = parse_layers(text); });
  set.check([&options] {
    if (options.clamp || options.dense || options.local + options.heavy <= kMaxCount) return;
    throw Failure(fmt::format("--h2o-local {} and --h2o-heavy {} make {} together; allowed are {}",
                              options.local, options.heavy, options.local + options.heavy, kMaxCount));
  });
  set.check([&options] {
    if (options.kv_bits % 8 != 0) refuse("--kv-bits", options.kv_bits, "0 or 8");
  });
  declare_rule(set, options);
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
