#include "cli/commands/retrieval/flags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "cli/support/failure.hpp"
#include "cli/support/numbers.hpp"

namespace headwater::cli {
namespace {

constexpr const char* kDefaultDepths = "0,10,25,50,75,90,100";
constexpr std::int64_t kMostPrompts = 10'000;
constexpr std::int64_t kMostSeed = std::int64_t{1} << 62;

constexpr const char* kFooter = R"(
In every prompt a line with a code is planted at each depth, with lines of TEXT around them, and the prompt ends with the
question for one of the codes: that of the first depth in the first prompt, of the second in the second, and so on. The
model goes on greedily. An answer is right where all of its tokens are those of the code; its first token is counted
apart. The prompts are run with dense prefill and with sparse prefill by the rule of --select. The question is the end of
the sparse prefill (--ask prefill), where what it asks for must be in a memory set; or it is a dense decode step that sees
every token (--ask tail), as the end of a prompt is for `generate`. Rates are shares of the prompts, each of which has
codes, names and a beginning in TEXT of its own; equal seeds give equal prompts, whatever the rule.

The default lines are those that the bundled model was trained on; another model may need others:
  --needle 'The secret code of {name} is {code}.' --question 'Question: what is the secret code of {name}? Answer:'

Example: look-ups in 4096 tokens, by sets that the queries choose
  headwater retrieval -m models/headwater-tiny-f16.gguf -f models/eval-16k.txt --window 4096 --select blocks

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
      "How often a model finds a planted code again, asked for at the end of a long prompt: dense against "
      "sparse prefill.",
      "headwater retrieval", kFooter);
  flags.model.declare(set);
  set.file("-f,--file", "-f (--file)", "TEXT", "what stands around the codes; - is standard input",
           flags.file)
      ->required();
  set.integer("--window", "--window", 2, kMaxCount,
              "most tokens of a prompt and its answer (those of the text, up to the context)", flags.window);
  set.value("--depths", "LIST", "where codes are planted, per cent of the text (0,10,25,50,75,90,100)",
            [&](const std::string& text) { flags.depths = parse_depths(text); });
  set.integer("--prompts", "--prompts", 1, kMostPrompts, "prompts, each with one question (56)",
              flags.prompts);
  set.choice("--ask", "PLACE",
             "the question is the end of the prefill, or a dense tail: prefill or tail (prefill)",
             "prefill or tail", {{"prefill", false}, {"tail", true}}, flags.tail);
  set.flag("--no-dense", flags.dense, "run sparse prefill alone", false);
  set.integer("--seed", "--seed", 0, kMostSeed, "of codes, names and beginnings (0)", flags.seed);
  set.text("--needle", "LINE", "what is planted, with {name} and {code}", flags.texts.needle);
  set.text("--question", "LINE", "what is asked, with {name}", flags.texts.question);
  set.json(flags.json);
  set.check([&] { check_templates(flags.texts); });
  if (!set.parse(arguments)) return std::nullopt;
  return flags;
}

}  // namespace headwater::cli
