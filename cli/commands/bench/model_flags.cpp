#include "cli/commands/bench/model_flags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "cli/support/failure.hpp"
#include "cli/support/numbers.hpp"
#include "cli/support/text.hpp"
#include "runtime/model/transformer.hpp"

namespace headwater::bench {

namespace {

using cli::Failure;
using cli::kMaxCount;

constexpr std::int64_t kMostRounds = 1000;
constexpr std::size_t kMostPrompts = 32;

constexpr const char* kFooter = R"(
Prompts of tokens (7919 i + seed) modulo the vocabulary, i = 0, 1, ...: the time to the first token and where it went,
then the rate of tokens generated after the prompt, one at a time and dense over everything stored. Sparse and dense prefill take turns in every round; times are
medians, the split is that of the median round. On one thread they are processor times. Beside them a loop that reads memory and does nothing with it says how
fast a token could be generated at best: its weights and the stored keys and values are read once.

--random makes the weights in memory, in a shape whose file need not be there, as --type (q8_0, q4_0, q4_1, q5_0, q5_1,
q4_k, q5_k, q6_k, iq4_nl, mxfp4, q2_k, q3_k, iq4_xs, f16, bf16, f32):
  qwen3-0.6b, qwen3-1.7b, qwen3-4b, qwen3-8b, qwen3-14b, qwen3-30b-a3b, gpt-oss-20b, gemma3-1b,
  qwen2.5-1.5b, qwen2.5-7b, llama-3.2-1b, llama-3.2-3b, llama-3.1-8b, llama-2-7b, mistral-7b-v0.3
A file of --save has a tokenizer of bytes and a file type, which OpenVINO GenAI asks for: it can be timed on the same file.
What does not fit into the machine's memory is refused before it is taken.

Example: what sparse prefill would gain on a model that is not here
  headwater bench --random qwen3-1.7b -n 4096,8192
Example: what a server gains that decodes eight conversations in one pass over the weights
  headwater bench --random qwen3-0.6b -n 512 --slots 8 --no-dense
Example: your own model, as JSON
  headwater bench -m MODEL.gguf -n 8192 --json

Exit status: 0 done, 2 bad usage or bad input, 3 engine not available.)";

std::vector<std::int64_t> parse_tokens(const std::string& text) {
  std::vector<std::int64_t> tokens;
  std::size_t begin = 0;
  for (;;) {
    const std::size_t comma = text.find(',', begin);
    tokens.push_back(cli::parse_integer("-n (--tokens)", text.substr(begin, comma - begin), 1, kMaxCount));
    if (tokens.size() > kMostPrompts) {
      throw Failure(fmt::format("-n (--tokens): more than {} lengths", kMostPrompts));
    }
    if (comma == std::string::npos) return tokens;
    begin = comma + 1;
  }
}

runtime::TensorType parse_type(const std::string& text) {
  std::string upper = text;
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  for (const runtime::TensorTypeInfo& info : runtime::tensor_types()) {
    if (info.name == upper) return info.type;
  }
  throw Failure(fmt::format("--type: {} is not allowed; use one of: {}", cli::in_quotes(text),
                            runtime::tensor_type_list()));
}

void check_together(const ModelBenchFlags& flags, bool model, bool type) {
  const auto refuse = [](const char* what) {
    throw Failure(fmt::format("{}; see headwater bench --random --help", what));
  };
  if (model && flags.shape) refuse("-m and --random are both given; allowed is one of them");
  if (!model && !flags.shape) refuse("the model is missing; use -m MODEL.gguf or --random SHAPE");
  if (flags.shape && cli::ranks() != nullptr) {
    refuse(
        "--random makes a whole model in each process, but several ranks were started; --save it, then use "
        "-m");
  }
  if (flags.shape && !flags.model.rotation.empty()) {
    throw Failure(flags.model.rotation.front().source + " is of a file; give it with -m MODEL.gguf");
  }
  if (flags.slots > 1 && flags.decode == 0) refuse("--slots decodes, and --decode is 0");
  if (model && (type || flags.save)) refuse("--type, --cut and --save belong to --random");
}

}  // namespace

bool is_model_bench(const std::vector<std::string>& arguments) {
  return cli::asks_for_model(arguments) ||
         std::any_of(arguments.begin(), arguments.end(), [](const std::string& argument) {
           return argument == "--random" || argument.starts_with("--random=");
         });
}

std::optional<ModelBenchFlags> parse_model_flags(const std::vector<std::string>& arguments) {
  ModelBenchFlags flags;
  std::optional<std::int64_t> layers;
  cli::FlagSet set("Time to the first token and tokens a second of a model, sparse against dense prefill.",
                   "headwater bench", kFooter);
  flags.model.declare(set, false);
  flags.model.ranks.declare(set);
  set.value(
      "--random", "SHAPE", "random weights in the shape of a known model", [&](const std::string& text) {
        if (const ModelShape* const known = find_shape(text)) {
          flags.shape = *known;
          return;
        }
        throw Failure(
            fmt::format("--random: {} is not known; use one of: {}", cli::in_quotes(text), shape_names()));
      });
  const auto* cut =
      set.integer("--cut", "--cut", 1, 65536, "only the first N layers of the random model (all)", layers);
  const auto* type = set.value("--type", "TYPE", "of the random weights, as stored (q8_0)",
                               [&](const std::string& text) { flags.type = parse_type(text); });
  set.value("-n,--tokens", "N[,N...]", "tokens of the prompts (512,2048,4096)",
            [&](const std::string& text) { flags.tokens = parse_tokens(text); });
  set.integer("--decode", "--decode", 0, kMaxCount, "tokens to generate after each prompt (16)",
              flags.decode);
  set.integer(
      "--slots", "--slots", 1, runtime::kMostSlots,
      "conversations of the same prompt that are also decoded together, in one pass over the weights (1)",
      flags.slots);
  set.integer("--dense-tail", "--dense-tail", 0, kMaxCount,
              "last tokens of a sparse prompt that see every token (64)", flags.dense_tail);
  set.integer("--rounds", "--rounds", 1, kMostRounds, "timed rounds (3)", flags.rounds);
  set.integer("--seed", "--seed", 0, kMaxCount, "of weights and tokens (1)", flags.seed);
  set.file("--save", "--save", "FILE", "write the random model to a GGUF file and do nothing else",
           flags.save);
  set.flag("--no-dense", flags.dense, "time sparse prefill alone", false);
  set.json(flags.json);
  set.check([&] { check_together(flags, !flags.model.model.empty(), type->count() + cut->count() > 0); });
  if (!set.parse(arguments)) return std::nullopt;
  if (flags.shape) flags.shape->layers = std::min(flags.shape->layers, layers.value_or(flags.shape->layers));
  return flags;
}

}  // namespace headwater::bench
