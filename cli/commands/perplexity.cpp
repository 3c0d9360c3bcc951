#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

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

namespace headwater::cli {
namespace {

constexpr const char* kCommand = "headwater perplexity";
constexpr std::int64_t kLogitRows = 256;  ///< rows whose logits are in memory at a time

constexpr const char* kFooter = R"(
The tokens of the text are cut into windows; each is a fresh session: a prefill turn, then one decode step of --decode
tokens. Where the model begins texts with BOS, every window begins with it, in place of the text's token there (as
llama.cpp's perplexity tool has it). The first token of a window is not judged; every other one is: `prefill` is the mean
negative log-likelihood in nats of the tokens inside the turn, `decoded` that of the decode step's (the first of them is
predicted by the last prefill position). Standard errors take tokens for independent, which they are not quite.

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
  std::vector<double> decoded;
};

std::optional<PerplexityFlags> parse(const std::vector<std::string>& arguments) {
  PerplexityFlags flags;
  FlagSet set("How well a model predicts a text behind dense and behind sparse prefill.", kCommand, kFooter);
  flags.model.declare(set);
  set.file("-f,--file", "-f (--file)", "TEXT", "a text; - is standard input", flags.file)->required();
  set.integer("--window", "--window", 2, kMaxCount, "tokens of a window (the whole text, up to the context)",
              flags.window);
  set.integer("--decode", "--decode", 0, kMaxCount, "tokens of a window that are decoded densely (256)",
              flags.decode);
  set.json(flags.json);
  if (!set.parse(arguments)) return std::nullopt;
  return flags;
}

/// -ln softmax(logits)[id].
double loss(std::span<const float> logits, std::int32_t id) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - most);
  const double result = most + std::log(sum) - static_cast<double>(logits[static_cast<std::size_t>(id)]);
  if (!std::isfinite(result)) throw Failure("the model's logits are not finite; its weights are unusable");
  return result;
}

/// One window after another through a transformer.
class Reader {
 public:
  Reader(runtime::Transformer& transformer, std::int64_t decode, Progress& progress)
      : transformer_(transformer),
        decode_(decode),
        progress_(progress),
        vocabulary_(transformer.model().config().vocabulary),
        logits_(static_cast<std::size_t>(kLogitRows * vocabulary_)) {}

  void read(std::span<const std::int32_t> ids) {
    transformer_.reset();
    const auto n = static_cast<std::int64_t>(ids.size());
    const std::int64_t prefill = n - decode_;
    for (std::int64_t at = 0; at < n;) {
      const bool decoding = at >= prefill;
      const std::int64_t count = std::min(transformer_.max_step(), (decoding ? n : prefill) - at);
      const std::int64_t turn = at == 0 && count < prefill ? prefill : 0;
      transformer_.run(decoding ? Step::decode(count) : Step::prefill(count, turn),
                       ids.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count)));
      judge(ids, at, count, prefill);
      at += count;
      progress_.advance(static_cast<std::uint64_t>(count));
    }
  }
  [[nodiscard]] const Losses& losses() const { return losses_; }

 private:
  /// The logits after token i of the window judge token i + 1.
  void judge(std::span<const std::int32_t> ids, std::int64_t at, std::int64_t count, std::int64_t prefill) {
    const auto n = static_cast<std::int64_t>(ids.size());
    for (std::int64_t first = 0; first < count; first += kLogitRows) {
      const std::int64_t rows = std::min(kLogitRows, count - first);
      transformer_.logits(first, rows, logits_);
      for (std::int64_t r = 0; r < rows && at + first + r + 1 < n; ++r) {
        const std::int64_t next = at + first + r + 1;
        const auto row = std::span<const float>(logits_).subspan(static_cast<std::size_t>(r * vocabulary_),
                                                                 static_cast<std::size_t>(vocabulary_));
        auto& to = next < prefill ? losses_.prefill : losses_.decoded;
        to.push_back(loss(row, ids[static_cast<std::size_t>(next)]));
      }
    }
  }

  runtime::Transformer& transformer_;
  std::int64_t decode_;
  Progress& progress_;
  std::int64_t vocabulary_;
  std::vector<float> logits_;
  Losses losses_;
};

nlohmann::ordered_json summary_json(const std::vector<double>& values) {
  const Mean mean = mean_of(values);
  return {{"nll", mean.value}, {"stderr", mean.error}, {"tokens", mean.count}};
}

nlohmann::ordered_json losses_json(const Losses& losses) {
  return {{"prefill", summary_json(losses.prefill)}, {"decoded", summary_json(losses.decoded)}};
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

Losses run(runtime::Transformer& transformer, std::int64_t decode, std::span<const std::int32_t> ids,
           std::int64_t window, Progress& progress) {
  Reader reader(transformer, decode, progress);
  const auto n = static_cast<std::int64_t>(ids.size());
  // A last shorter window is dropped; the window is never longer than the text.
  for (std::int64_t at = 0; at + window <= n; at += window) {
    reader.read(ids.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(window)));
  }
  return reader.losses();
}

}  // namespace

ExitCode perplexity_command(const std::vector<std::string>& arguments) {
  const auto flags = parse(arguments);
  if (!flags) return ExitCode::done;
  install_signal_handlers(kCommand, flags->model.model);
  const std::string text = read_text("-f (--file)", flags->file);
  LoadedModel model(flags->model);
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
  auto transformer = model.open(window, false);
  const EffectiveOptions effective = transformer->session().options();
  std::vector<std::string> warnings = model.warnings();
  check_utf8("-f (--file)", text, warnings);
  warnings.insert(warnings.end(), effective.warnings.begin(), effective.warnings.end());
  if (n % window != 0) {
    warnings.push_back(
        fmt::format("the last {} of {} fill no window of {}", n % window, count_text(n, "token"), window));
  }
  warn(warnings);
  Losses dense;
  Losses sparse;
  {
    Progress progress(static_cast<std::uint64_t>(2 * windows * window), "perplexity",
                      static_cast<std::uint64_t>(2 * windows * window));
    sparse = run(*transformer, flags->decode, ids, window, progress);
    transformer.reset();  // one cache at a time
    transformer = model.open(window, true);
    dense = run(*transformer, flags->decode, ids, window, progress);
  }
  if (flags->json) {
    nlohmann::ordered_json json;
    json["window"] = window;
    json["windows"] = windows;
    json["decode"] = flags->decode;
    json["effective"] = {{"batch", effective.batch},
                         {"chunk", effective.chunk},
                         {"local", effective.local},
                         {"heavy", effective.heavy}};
    json["dense"] = losses_json(dense);
    json["sparse"] = losses_json(sparse);
    json["difference"] = {{"prefill", summary_json(differences(sparse.prefill, dense.prefill))},
                          {"decoded", summary_json(differences(sparse.decoded, dense.decoded))}};
    json["warnings"] = warnings;
    print_out(json_line(json));
  } else {
    print_out(fmt::format(
        "windows  {} of {} tokens, the last {} of each decoded; chunks of {}, memory {} local + {} "
        "heavy\n{}{}",
        windows, window, flags->decode, effective.chunk, effective.local, effective.heavy,
        line("prefill", dense.prefill, sparse.prefill), line("decoded", dense.decoded, sparse.decoded)));
  }
  return ExitCode::done;
}

}  // namespace headwater::cli
