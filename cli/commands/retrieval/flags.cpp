#include "cli/commands/retrieval/flags.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>

#include "cli/support/arguments.hpp"
#include "cli/support/failure.hpp"
#include "cli/support/numbers.hpp"
#include "cli/support/text.hpp"

namespace headwater::cli {
namespace {

constexpr const char* kDefaultDepths = "0,10,25,50,75,90,100";
constexpr std::int64_t kMostTrials = 10'000;
constexpr std::int64_t kMostSeed = std::int64_t{1} << 62;

constexpr const char* kFooter = R"(
In every prompt a line with a code is planted at each depth, with lines of TEXT around them; behind the text all codes
are asked for, in random order, each question followed by its answer. An answer is right where each of its tokens is the
one that the model ranks first: what greedy generation would have said. Every prompt is run three times: dense prefill;
sparse prefill of everything, questions and answers included; sparse prefill of the text and one dense decode step for
the questions (--dense-tail of `generate`; here a number says how many of the last tokens). Rates are per cent of the
prompts; standard errors are over trials, each with codes, names and a beginning in TEXT of its own.

The default lines are those that the bundled model was trained on; another model may need others:
  --needle 'The secret code of {name} is {code}.' --question 'Question: what is the secret code of {name}? Answer:'

Example: look-ups in 4096 tokens
  headwater retrieval -m models/headwater-tiny-f16.gguf -f models/eval-16k.txt --window 4096

Exit status: 0 done, 2 bad usage or bad input, 3 engine not available.)";

std::vector<double> parse_depths(std::string_view text) {
  constexpr const char* kFlag = "--depths";
  std::vector<double> depths;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const double depth = parse_real(kFlag, text.substr(begin, end - begin), 0.0);
    if (depth > 100) {
      throw Failure(fmt::format("{}: {} is not allowed; use per cent of the text, 0 to 100", kFlag, depth));
    }
    depths.push_back(depth);
    begin = end + 1;
  }
  std::sort(depths.begin(), depths.end());
  if (const auto twice = std::adjacent_find(depths.begin(), depths.end()); twice != depths.end()) {
    throw Failure(fmt::format("{}: {} is given twice; allowed is once", kFlag, *twice));
  }
  return depths;
}

}  // namespace

std::optional<RetrievalFlags> parse_retrieval_flags(const std::vector<std::string>& arguments) {
  RetrievalFlags flags;
  std::string window;
  std::string depths;
  std::string trials;
  std::string tail;
  std::string seed;
  CLI::App app(
      "How often a model finds a planted code again: dense prefill, sparse prefill, sparse with a dense "
      "tail.",
      "headwater retrieval");
  app.footer(kFooter);
  const ModelFlagReader model(app);
  add_text(app, "-f,--file", flags.file, "TEXT", "what stands around the codes; - is standard input")
      ->required();
  const auto* window_option = add_text(app, "--window", window, "N",
                                       "most tokens of a prompt (those of the text, up to the context)");
  const auto* depths_option =
      add_text(app, "--depths", depths, "LIST",
               "where codes are planted, per cent of the text (0,10,25,50,75,90,100)");
  const auto* trials_option =
      add_text(app, "--trials", trials, "N", "prompts, or with --single prompts for each depth (8)");
  const auto* tail_option = add_text(app, "--dense-tail", tail, "N",
                                     "last tokens that see every token, in the third run (the questions)");
  const auto* seed_option = add_text(app, "--seed", seed, "N", "of codes, names and beginnings (0)");
  add_text(app, "--needle", flags.texts.needle, "LINE", "what is planted, with {name} and {code}");
  add_text(app, "--question", flags.texts.question, "LINE", "what is asked, with {name}");
  app.add_flag("--single", flags.single, "one question a prompt, and as many prompts as depths");
  app.add_flag("--json", flags.json, "one JSON object on standard output");
  if (!parse_arguments(app, arguments)) return std::nullopt;
  flags.model = model.read();
  if (flags.file.empty()) throw Failure("-f (--file): '' is no name of a file");
  if (window_option->count() > 0) flags.window = parse_integer("--window", window, 2, kMaxCount);
  flags.depths = parse_depths(depths_option->count() > 0 ? depths : kDefaultDepths);
  if (trials_option->count() > 0) flags.trials = parse_integer("--trials", trials, 1, kMostTrials);
  if (tail_option->count() > 0) flags.dense_tail = parse_integer("--dense-tail", tail, 1, kMaxCount);
  if (seed_option->count() > 0) {
    flags.seed = static_cast<std::uint64_t>(parse_integer("--seed", seed, 0, kMostSeed));
  }
  check_templates(flags.texts);
  return flags;
}

}  // namespace headwater::cli
