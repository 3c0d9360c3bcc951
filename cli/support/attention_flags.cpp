#include "cli/support/attention_flags.hpp"

#include <fmt/format.h>

#include "cli/support/failure.hpp"

namespace headwater::cli {
namespace {

constexpr std::int64_t kMostThreads = 512;

}  // namespace

void declare_memory_sets(FlagSet& set, Options& options) {
  set.integer("-b,--batch,--batch-size", "-b (--batch)", 1, kMaxCount,
              "B, logical batch: tokens of one prefill call (4096)", options.batch);
  set.integer("--ubatch-size,--chunk", "-ub (--chunk)", 1, kMaxCount,
              "S, chunk: tokens with full causal attention; also -ub (1024)", options.chunk);
  set.integer("--h2o-local", "--h2o-local", 0, kMaxCount,
              "L, newest tokens always kept in the memory set (256)", options.local);
  set.integer("--h2o-heavy", "--h2o-heavy", 0, kMaxCount, "H, tokens kept because of their score (256)",
              options.heavy);
  set.flag("--h2o-no-clamp", options.clamp, "let L + H be S or more", false);
  set.check([&options] {
    if (options.clamp || options.dense || options.local + options.heavy <= kMaxCount) return;
    throw Failure(fmt::format("--h2o-local {} and --h2o-heavy {} make {} together; allowed are {}",
                              options.local, options.heavy, options.local + options.heavy, kMaxCount));
  });
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
