#include "cli/commands/retrieval/flags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "cli/support/failure.hpp"
#include "cli/support/numbers.hpp"

namespace headwater::cli {
namespace {

constexpr const char* kDefaultDepths = "0,10,25,50,75,90,100";
constexpr std::int64_t kMostTrials = 10'000;
constexpr std::int64_t kMostSeed = std::int64_t{1} << 62;

constexpr const char* kFooter = R"(
In every prompt a line with a code is planted at each depth, with lines of TEXT around them; after the text all codes
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
  flags.depths = parse_depths(kDefaultDepths);
  FlagSet set(
      "How often a model finds a planted code again: dense prefill, sparse prefill, sparse with a dense "
      "tail.",
      "headwater retrieval", kFooter);
  flags.model.declare(set);
  set.file("-f,--file", "-f (--file)", "TEXT", "what stands around the codes; - is standard input",
           flags.file)
      ->required();
  set.integer("--window", "--window", 2, kMaxCount,
              "most tokens of a prompt (those of the text, up to the context)", flags.window);
  set.value("--depths", "LIST", "where codes are planted, per cent of the text (0,10,25,50,75,90,100)",
            [&](const std::string& text) { flags.depths = parse_depths(text); });
  set.integer("--trials", "--trials", 1, kMostTrials, "prompts, or with --single prompts for each depth (8)",
              flags.trials);
  set.integer("--dense-tail", "--dense-tail", 1, kMaxCount,
              "last tokens that see every token, in the third run (the questions)", flags.dense_tail);
  set.integer("--seed", "--seed", 0, kMostSeed, "of codes, names and beginnings (0)", flags.seed);
  set.text("--needle", "LINE", "what is planted, with {name} and {code}", flags.texts.needle);
  set.text("--question", "LINE", "what is asked, with {name}", flags.texts.question);
  set.flag("--single", flags.single, "one question a prompt, and as many prompts as depths");
  set.json(flags.json);
  set.check([&] { check_templates(flags.texts); });
  if (!set.parse(arguments)) return std::nullopt;
  return flags;
}

}  // namespace headwater::cli
