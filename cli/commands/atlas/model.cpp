#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <optional>

#include "cli/commands/atlas/atlas.hpp"
#include "cli/commands/atlas/model_trace.hpp"
#include "cli/support/interrupt.hpp"
#include "cli/support/json_text.hpp"
#include "cli/support/loaded_model.hpp"
#include "cli/support/progress.hpp"
#include "cli/support/prompt.hpp"
#include "cli/support/streams.hpp"
#include "cli/support/text.hpp"
#include "headwater/headwater.hpp"
#include "runtime/generate/conversation.hpp"

namespace headwater::cli {
namespace {

constexpr const char* kCommand = "headwater atlas";
constexpr std::uint64_t kProgressUnits = 1'000'000;

constexpr const char* kFooter = R"(
The text goes through the model as a prompt of `headwater generate` does: by chunks, its last tokens (--dense-tail) by a
dense decode step. The page shows for every layer and head which tokens each chunk read, the score of every token and how
long tokens survive; where the cursor is, it shows the token in its text. It needs no network and nothing beside it, and
is refused beyond 64 MiB: choose layers then. With another rule than h2o it shows which query block read which keys.

Example: what the bundled model keeps of 4096 tokens
  headwater atlas -m models/headwater-tiny-f16.gguf -f models/eval-8k.txt --window 4096 -o atlas.html

Exit status: 0 done, 2 bad usage or bad input, 3 engine not available.)";

struct AtlasModelFlags {
  ModelFlags model;
  AtlasOutputs outputs;
  std::string prompt;
  std::string file;
  std::optional<std::int64_t> window;
  std::int64_t dense_tail = 64;
  std::vector<std::int64_t> layers;  ///< empty: all
};

void check_text(const AtlasModelFlags& flags, bool has_prompt, bool has_file) {
  if (has_prompt == has_file) {
    throw Failure(has_prompt ? "-p and -f are both given; allowed is one of them"
                             : "the text is missing; use -p TEXT or -f FILE");
  }
  if (!has_file || flags.file == "-") return;
  for (const std::string& output : {flags.outputs.page, flags.outputs.picture}) {
    if (output.empty() || !same_file(output, flags.file)) continue;
    throw Failure(fmt::format("{} is the text; write to another file", in_quotes(output)));
  }
}

std::optional<AtlasModelFlags> parse(const std::vector<std::string>& arguments) {
  AtlasModelFlags flags;
  FlagSet set(
      "Which tokens of a text survive in every layer and head of a model, as one HTML page and a picture.",
      kCommand, kFooter);
  flags.model.declare(set);
  const auto* prompt = set.text("-p,--prompt", "TEXT", "the text", flags.prompt);
  const auto* file =
      set.file("-f,--file", "-f (--file)", "FILE", "a file with the text; - is standard input", flags.file);
  set.integer("--window", "--window", 1, kMaxCount, "its first N tokens (all that fit into the context)",
              flags.window);
  set.integer("--dense-tail", "--dense-tail", 0, kMaxCount,
              "last tokens that see every token; 0 is the plain algorithm (64)", flags.dense_tail);
  set.value("--layer,--layers", "LIST", "layers to show, as 0,3,8-11 (all)",
            [&](const std::string& text) { flags.layers = parse_indices("--layer", text); });
  declare_atlas_outputs(set, flags.outputs);
  declare_atlas_reports(set, flags.outputs);
  set.check([&] { check_text(flags, prompt->count() > 0, file->count() > 0); });
  if (!set.parse(arguments)) return std::nullopt;
  return flags;
}

std::vector<std::int64_t> chosen_layers(const AtlasModelFlags& flags, std::int64_t layers) {
  if (flags.layers.empty()) {
    std::vector<std::int64_t> all(static_cast<std::size_t>(layers));
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  if (flags.layers.back() >= layers) {
    throw Failure(fmt::format("--layer: {} is not a layer of the model; allowed are 0 to {}",
                              flags.layers.back(), layers - 1));
  }
  return flags.layers;
}

void add_facts(const AtlasModelFlags& flags, const runtime::Transformer& transformer, AtlasTrace& trace) {
  const EffectiveOptions& effective = transformer.session().options();
  trace.facts = {{"version", kVersion},
                 {"engine", std::string(transformer.engine().name())},
                 {"isa", std::string(transformer.engine().isa())}};
  for (auto& fact : plan_facts(effective)) trace.facts.push_back(std::move(fact));
  trace.facts.emplace_back("projections", runtime::precision_name(flags.model.precision));
  for (auto& fact : rule_facts(effective)) trace.facts.push_back(std::move(fact));
}

AtlasTrace run(LoadedModel& model, const AtlasModelFlags& flags, const std::vector<std::int32_t>& ids,
               const std::vector<std::int64_t>& layers, std::vector<std::string> warnings) {
  const auto transformer = model.open(static_cast<std::int64_t>(ids.size()), false);
  const auto& more = transformer->session().options().warnings;
  warnings.insert(warnings.end(), more.begin(), more.end());
  warn(warnings);
  const ModelTrace recorded(transformer->session(), layers);
  runtime::Conversation conversation(*transformer, flags.dense_tail);
  {
    Progress progress(kProgressUnits, "atlas", ids.size());
    std::uint64_t shown = 0;
    conversation.feed(ids, [&](double share) {
      const auto units = static_cast<std::uint64_t>(share * static_cast<double>(kProgressUnits));
      progress.advance(units - std::min(shown, units));
      shown = units;
    });
  }
  AtlasTrace trace = recorded.take();
  for (const std::int32_t id : ids) trace.tokens.push_back(model.tokenizer().piece(id));
  add_facts(flags, *transformer, trace);
  return trace;
}

}  // namespace

ExitCode atlas_model_command(const std::vector<std::string>& arguments) {
  const auto flags = parse(arguments);
  if (!flags) return ExitCode::done;
  install_signal_handlers(kCommand, flags->model.model);
  const std::string text = flags->file.empty() ? flags->prompt : read_text("-f (--file)", flags->file);
  if (text.empty()) throw Failure("the text is empty; allowed: one byte or more");
  LoadedModel model(flags->model);
  if (model.config().recurrent_layers() > 0)
    throw Failure("-m (--model): the model has recurrent layers; allowed: one whose layers all attend");
  const auto layers = chosen_layers(*flags, model.config().layers);
  auto ids = model.tokenizer().encode(text, true, false);
  if (ids.empty()) throw Failure("the text has no token; allowed: one token or more");
  const std::int64_t most = flags->window.value_or(model.context());
  if (most > model.context()) {
    throw Failure(
        fmt::format("--window: {} is not allowed; the context has {} tokens", most, model.context()));
  }
  std::vector<std::string> warnings = model.warnings();
  check_text(flags->file.empty() ? "-p (--prompt)" : "-f (--file)", text, model.tokenizer(), warnings);
  const auto n = static_cast<std::int64_t>(ids.size());
  if (n > most && !flags->window) {
    warnings.push_back(fmt::format("only the first {} of {} tokens fit into the context", most, n));
  }
  ids.resize(static_cast<std::size_t>(std::min(n, most)));
  const std::string name = model.config().name.empty()
                               ? std::filesystem::path(flags->model.model).filename().string()
                               : model.config().name;
  write_atlas(flags->outputs, runtime::MappedFile(flags->model.model), name,
              [&] { return run(model, *flags, ids, layers, warnings); });
  return ExitCode::done;
}

}  // namespace headwater::cli
