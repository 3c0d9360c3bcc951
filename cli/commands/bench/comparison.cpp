#include "cli/commands/bench/comparison.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "cli/commands/bench/workload.hpp"
#include "cli/support/calls.hpp"
#include "cli/support/failure.hpp"
#include "cli/support/machine.hpp"
#include "cli/support/progress.hpp"
#include "cli/support/streams.hpp"
#include "cli/support/text.hpp"

namespace headwater::bench {

namespace {

/// Asked before anything is taken: a flag must not drive an allocation that the machine cannot hold.
void require_memory(const Flags& flags) {
  const double sessions = flags.dense ? 2.0 : 1.0;
  const double bytes = Workload::bytes(flags.shape) + sessions * session_bytes(flags.shape);
  const auto limit = cli::memory_limit();
  if (bytes <= static_cast<double>(limit)) return;
  throw cli::Failure(
      fmt::format("-n {} with {}, {} and rows of {} and {} needs {:.1f} GiB, but "
                  "the machine has {}; "
                  "use fewer tokens or heads, or shorter rows",
                  flags.shape.capacity, cli::count_text(flags.shape.n_head, "query head"),
                  cli::count_text(flags.shape.n_head_kv, "key/value head"), flags.shape.d_head,
                  flags.shape.d_value, bytes * 0x1p-30, cli::bytes_text(limit)));
}

/// An engine of another device would leave the processor idle.
bool runs_on_the_processor(const Engine& engine) {
  return engine.name() == "reference" || engine.name().starts_with("cpu");
}

/// A run and where its times go.
struct Contender {
  AttentionRun run;
  Timed& timed;
};

}  // namespace

Comparison compare(const Flags& flags, const Engine& engine) {
  require_memory(flags);
  Comparison result;
  result.engine = &engine;
  result.arithmetic = &arithmetic_of(engine.isa(), flags.shape.kv_type);
  result.arithmetic_missing = result.arithmetic->missing();

  Workload workload(flags.shape, flags.seed);
  Contender sparse{{engine, workload, flags.options}, result.sparse};
  result.effective = sparse.run.options();
  result.by_processor_time = result.effective.threads == 1 && runs_on_the_processor(engine);
  if (!result.effective.sparse) {
    throw cli::Failure(
        fmt::format("--h2o-local {} and --h2o-heavy {} with chunks of {} leave no memory set; use a sum "
                    "of at least 1 and chunks of at least 2",
                    flags.options.local, flags.options.heavy, flags.options.chunk));
  }
  std::optional<Contender> dense;
  if (flags.dense) {
    Options options = flags.options;
    options.dense = true;
    dense.emplace(Contender{{engine, workload, options}, result.dense});
  }

  const auto each = [&](bool backwards, const auto& action) {
    if (backwards && dense) action(*dense);
    action(sparse);
    if (!backwards && dense) action(*dense);
  };
  double pairs = 0.0;
  each(false, [&](Contender& contender) {
    const std::vector<cli::StepItem> all{{Step::prefill(flags.shape.capacity), {}}};
    contender.timed.pairs = static_cast<double>(cli::measure(all, contender.run.options()).pairs);
    pairs += contender.timed.pairs;
  });
  cli::warn(result.effective.warnings);
  cli::Progress progress(static_cast<std::uint64_t>(pairs * (flags.rounds + 1)), "bench");
  each(false, [&](Contender& contender) {
    contender.timed.checked = contender.run.check(flags.shape.capacity, 0, flags.seed);
    contender.timed.memory_bytes = contender.run.session().memory_bytes().total();
    progress.advance(static_cast<std::uint64_t>(contender.timed.pairs));
  });
  for (int round = 0; round < flags.rounds; ++round) {
    if (result.arithmetic_missing.empty()) {
      result.peak.push_back(peak_rate(*result.arithmetic, result.effective.threads));
    }
    each(round % 2 == 1, [&](Contender& contender) {
      const Seconds took = contender.run.prefill(flags.shape.capacity);
      contender.timed.seconds.push_back(took.wall);
      contender.timed.judged.push_back(result.by_processor_time ? took.cpu : took.wall);
      progress.advance(static_cast<std::uint64_t>(contender.timed.pairs));
    });
  }
  return result;
}

}  // namespace headwater::bench
