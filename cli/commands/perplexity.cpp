#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cli/commands/commands.hpp"
#include "cli/support/interrupt.hpp"
#include "cli/support/json_text.hpp"
#include "cli/support/loaded_model.hpp"
#include "cli/support/progress.hpp"
#include "cli/support/prompt.hpp"
#include "cli/support/statistics.hpp"
#include "cli/support/streams.hpp"
#include "cli/support/text.hpp"
#include "headwater/headwater.hpp"
#include "runtime/generate/teacher_forcing.hpp"

namespace headwater::cli {
namespace {

using runtime::Judgement;

constexpr const char* kCommand = "headwater perplexity";

constexpr const char* kFooter = R"(
The tokens of the text are cut into windows; each is a fresh session: a prefill turn, then one decode step of --decode
tokens. Where the model begins texts with BOS, every window begins with it, in place of the text's token there (as
llama.cpp's perplexity tool has it). The first token of a window is not judged; every other one is: `prefill` is the mean
negative log-likelihood in nats of the tokens inside the turn, `decoded` that of the decode step's (the first of them is
predicted by the last prefill position). `divergence` compares the two predictions at every position after the first
chunk, whatever the text says next: `kl` is the mean Kullback-Leibler divergence of the sparse distribution q from the
dense one p, the sum of p ln(p / q), in nats, `rank1` the share of positions where both hold the same token for the
likeliest. With --select blocks or sketches `ends` are the losses of the tokens after a query block, those of the first chunk left
out, and the turn's last one, whose next token is a decoded one: other tokens of the turn are judged by sets that they
chose themselves. Standard errors take tokens for independent, which they are not quite. Both
caches are in memory at once.

Example: what sparse prefill costs on a held-out text
  headwater perplexity -m models/headwater-tiny-f16.gguf -f models/eval-8k.txt --window 8192

Exit status: 0 done, 2 bad usage or bad input, 3 engine not available.)";

struct PerplexityFlags {
  ModelFlags model;
  std::string file;
  std::optional<std::int64_t> window;
  std::int64_t decode = 256;
  bool json = false;
};

/// Negative log-likelihoods in nats, one for each token.
struct Losses {
  std::vector<double> prefill;
  std::vector<double>
      ends;  ///< of those in `prefill` that come after a query block, the first chunk's left out
  std::vector<double> decoded;
};

/// Sparse against dense, one entry for each position.
struct Divergence {
  std::vector<double> kl;     ///< nats
  std::vector<double> rank1;  ///< 1 where both hold the same token for the likeliest, else 0
};

/// What was measured over all windows.
struct Measured {
  Losses dense;
  Losses sparse;
  Divergence prefill;  ///< positions after the first chunk, inside the turn
  Divergence decoded;
};

std::optional<PerplexityFlags> parse(const std::vector<std::string>& arguments) {
  PerplexityFlags flags;
  FlagSet set("How well a model predicts a text after dense and after sparse prefill.", kCommand, kFooter);
  flags.model.declare(set);
  flags.model.ranks.declare(set);
  flags.model.ranks.judges_every_token = true;
  set.file("-f,--file", "-f (--file)", "TEXT", "a text; - is standard input", flags.file)->required();
  set.integer("--window", "--window", 2, kMaxCount, "tokens of a window (the whole text, up to the context)",
              flags.window);
  set.integer("--decode", "--decode", 0, kMaxCount, "tokens of a window that are decoded densely (256)",
              flags.decode);
  set.json(flags.json);
  if (!set.parse(arguments)) return std::nullopt;
  flags.model.ranks.reads_input = flags.file == "-";
  return flags;
}

/// What two transformers of one model say of the tokens of a window.
class Judge {
 public:
  explicit Judge(const runtime::Transformer& sparse) : sparse_(sparse) {}

  /// The predictions at position i of a window of n tokens, dense and sparse, judge token i + 1.
  void add(std::int64_t n, std::int64_t prefill, std::int64_t position, const Judgement& judgement,
           bool ends_block) {
    const bool after_first_chunk = position >= std::min(sparse_.session().options().chunk, prefill);
    if (after_first_chunk) {
      Divergence& to = position < prefill ? measured_.prefill : measured_.decoded;
      to.kl.push_back(judgement.divergence);
      to.rank1.push_back(judgement.rank1);
    }
    const std::int64_t next = position + 1;
    if (next == n) return;
    for (const auto& [loss, to] :
         {std::pair{judgement.losses[0], &measured_.dense}, {judgement.losses[1], &measured_.sparse}}) {
      (next < prefill ? to->prefill : to->decoded).push_back(loss);
      if (next < prefill && after_first_chunk && ends_block) to->ends.push_back(loss);
    }
  }
  [[nodiscard]] const Measured& measured() const { return measured_; }

 private:
  const runtime::Transformer& sparse_;
  Measured measured_;
};

/// All windows of the text; a last shorter one is dropped.
Measured measure(runtime::Transformer& dense, runtime::Transformer& sparse, std::int64_t decode,
                 std::span<const std::int32_t> ids, std::int64_t window) {
  const auto windows = static_cast<std::int64_t>(ids.size()) / window;
  const auto work = static_cast<std::uint64_t>(2 * windows * window);
  Progress progress(work, "perplexity", work);
  runtime::WindowReader reader({&dense, &sparse}, decode,
                               ranks() != nullptr ? ranks()->judge() : runtime::FarJudge{});
  Judge judge(sparse);
  for (std::int64_t w = 0; w < windows; ++w) {
    const auto part = ids.subspan(static_cast<std::size_t>(w * window), static_cast<std::size_t>(window));
    reader.read(
        part,
        [&](std::int64_t position, const Judgement& judgement, bool ends_block) {
          judge.add(window, window - decode, position, judgement, ends_block);
        },
        [&](std::int64_t tokens) { progress.advance(static_cast<std::uint64_t>(tokens)); });
  }
  reader.finish();
  return judge.measured();
}

nlohmann::ordered_json summary_json(const std::vector<double>& values) {
  const Mean mean = mean_of(values);
  return {{"nll", mean.value}, {"stderr", mean.error}, {"tokens", mean.count}};
}

nlohmann::ordered_json losses_json(const Losses& losses) {
  nlohmann::ordered_json json = {{"prefill", summary_json(losses.prefill)},
                                 {"decoded", summary_json(losses.decoded)}};
  if (!losses.ends.empty()) json["ends"] = summary_json(losses.ends);
  return json;
}

/// What sparse attention adds to each loss.
Losses difference(const Losses& sparse, const Losses& dense) {
  return {differences(sparse.prefill, dense.prefill), differences(sparse.ends, dense.ends),
          differences(sparse.decoded, dense.decoded)};
}

nlohmann::ordered_json divergence_json(const Divergence& divergence) {
  const Mean kl = mean_of(divergence.kl);
  const Mean rank1 = mean_of(divergence.rank1);
  return {{"kl", kl.value},
          {"kl_stderr", kl.error},
          {"rank1", rank1.value},
          {"rank1_stderr", rank1.error},
          {"tokens", kl.count}};
}

std::string divergence_line(const char* name, const Divergence& divergence) {
  const Mean kl = mean_of(divergence.kl);
  const Mean rank1 = mean_of(divergence.rank1);
  if (kl.count == 0) return {};
  return fmt::format(
      "{:<8} {}: sparse from dense: KL divergence {:.4f} (se {:.4f}) nats, same likeliest token {:.3f}\n",
      name, count_text(kl.count, "position"), kl.value, kl.error, rank1.value);
}

std::string line(const char* name, const std::vector<double>& dense, const std::vector<double>& sparse) {
  const Mean d = mean_of(dense);
  const Mean s = mean_of(sparse);
  const Mean change = mean_of(differences(sparse, dense));
  if (d.count == 0) return fmt::format("{:<8} no tokens\n", name);
  return fmt::format(
      "{:<8} {}: dense {:.4f} (se {:.4f}), sparse {:.4f} (se {:.4f}) nats a token; perplexity {:+.2f} "
      "% "
      "(se {:.2f})\n",
      name, count_text(d.count, "token"), d.value, d.error, s.value, s.error, 100 * std::expm1(change.value),
      100 * change.error);
}

}  // namespace

ExitCode perplexity_command(const std::vector<std::string>& arguments) {
  join_ranks(kCommand, arguments);
  const auto flags = parse(arguments);
  if (!flags) return ExitCode::done;
  install_signal_handlers(kCommand, flags->model.model);
  // Rank 0 reads the text.
  const std::string text = serves() ? std::string() : read_text("-f (--file)", flags->file);
  LoadedModel model(flags->model);
  if (serves()) model.serve();
  auto ids = model.tokenizer().encode(text, true, false);
  const auto n = static_cast<std::int64_t>(ids.size());
  const std::int64_t asked = flags->window.value_or(model.context());
  if (asked > model.context()) {
    throw Failure(
        fmt::format("--window: {} is not allowed; the context has {} tokens", asked, model.context()));
  }
  const std::int64_t window = std::min(asked, n);
  if (window < 2 || flags->decode > window - 1) {
    throw Failure(fmt::format("{} has {}; a window of {} needs at least 2, and {} more than --decode {}",
                              in_quotes(flags->file), count_text(n, "token"), window, 1, flags->decode));
  }
  const std::int64_t windows = n / window;
  if (model.tokenizer().adds_bos()) {
    for (std::int64_t w = 0; w < windows; ++w)
      ids[static_cast<std::size_t>(w * window)] = model.tokenizer().bos();
  }
  const auto sparse = model.open(window, false);
  const auto dense = model.open(window, true);
  const EffectiveOptions effective = sparse->options();
  std::vector<std::string> warnings = model.warnings();
  check_text("-f (--file)", text, model.tokenizer(), warnings);
  warnings.insert(warnings.end(), effective.warnings.begin(), effective.warnings.end());
  if (n % window != 0) {
    warnings.push_back(
        fmt::format("the last {} of {} fill no window of {}", n % window, count_text(n, "token"), window));
  }
  warn(warnings);
  const Measured all = measure(*dense, *sparse, flags->decode, ids, window);
  const std::vector<pipeline::RankReport> reports = rank_reports();
  if (flags->json) {
    nlohmann::ordered_json json;
    json["window"] = window;
    json["windows"] = windows;
    json["decode"] = flags->decode;
    json["effective"] = effective_json(effective, nlohmann::ordered_json::object());
    json["dense"] = losses_json(all.dense);
    json["sparse"] = losses_json(all.sparse);
    json["difference"] = losses_json(difference(all.sparse, all.dense));
    json["divergence"] = {{"prefill", divergence_json(all.prefill)},
                          {"decoded", divergence_json(all.decoded)}};
    add_ranks(json, reports);
    json["warnings"] = warnings;
    print_out(json_line(json));
  } else {
    print_out(fmt::format(
        "windows  {} of {} tokens, the last {} of each decoded; chunks of {}, memory {} local + {} "
        "heavy, {}\n{}{}{}{}{}",
        windows, window, flags->decode, effective.chunk, effective.local, effective.heavy,
        rule_text(effective), line("prefill", all.dense.prefill, all.sparse.prefill),
        all.sparse.ends.empty() ? "" : line("ends", all.dense.ends, all.sparse.ends),
        line("decoded", all.dense.decoded, all.sparse.decoded), divergence_line("prefill", all.prefill),
        divergence_line("decoded", all.decoded)));
  }
  return ExitCode::done;
}

}  // namespace headwater::cli
