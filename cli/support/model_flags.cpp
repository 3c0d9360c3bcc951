#include "cli/support/model_flags.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/support/failure.hpp"
#include "cli/support/numbers.hpp"
#include "cli/support/text.hpp"

namespace headwater::cli {
namespace {

constexpr std::int64_t kMostThreads = 512;

DType parse_cache_type(const std::string& text, runtime::Precision precision) {
  if (text == "auto") return precision == runtime::Precision::bf16 ? DType::bf16 : DType::f16;
  if (text == "f16") return DType::f16;
  if (text == "bf16") return DType::bf16;
  if (text == "f32") return DType::f32;
  throw Failure(fmt::format("--cache-type: {} is not allowed; use auto, f16, bf16 or f32", in_quotes(text)));
}

runtime::Precision parse_precision(const std::string& text) {
  using runtime::Precision;
  if (text == "auto") return runtime::native_precision();
  if (text == "f32") return Precision::f32;
  if (text == "bf16") {
    if (runtime::native_precision() == Precision::bf16) return Precision::bf16;
    throw Failure(fmt::format(
        "--projections: bf16 needs a processor with AVX512_BF16 or AMX, this one has {}; use f32 or auto",
        runtime::product_isa()));
  }
  throw Failure(fmt::format("--projections: {} is not allowed; use auto, f32 or bf16", in_quotes(text)));
}

}  // namespace

CLI::Option* add_text(CLI::App& app, const char* name, std::string& text, const char* type,
                      const char* help) {
  return app.add_option(name, text, help)->type_name(type);
}

bool asks_for_model(const std::vector<std::string>& arguments) {
  return std::any_of(arguments.begin(), arguments.end(), [](const std::string& argument) {
    return argument.starts_with("-m") || argument == "--model" || argument.starts_with("--model=");
  });
}

struct ModelFlagReader::State {
  std::string model, batch, chunk, local, heavy, threads, engine, cache_type, projections, context;
  bool no_clamp = false;
  CLI::Option *model_option, *batch_option, *chunk_option, *local_option, *heavy_option, *threads_option,
      *engine_option, *cache_option, *projections_option, *context_option;
};

ModelFlagReader::ModelFlagReader(CLI::App& app, bool model_required) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.model_option = add_text(app, "-m,--model", s.model, "MODEL", "a GGUF file: qwen3, qwen2 or llama");
  s.model_option->required(model_required);
  s.batch_option = add_text(app, "-b,--batch,--batch-size", s.batch, "N",
                            "B, logical batch: tokens of one prefill call (4096)");
  s.chunk_option = add_text(app, "--ubatch-size,--chunk", s.chunk, "N",
                            "S, chunk: tokens with full causal attention; also -ub (1024)");
  s.local_option =
      add_text(app, "--h2o-local", s.local, "N", "L, newest tokens always kept in the memory set (256)");
  s.heavy_option = add_text(app, "--h2o-heavy", s.heavy, "N", "H, tokens kept because of their score (256)");
  app.add_flag("--h2o-no-clamp", s.no_clamp, "let L + H be S or more");
  s.context_option =
      add_text(app, "-c,--ctx-size", s.context, "N", "most tokens of the conversation; 0: the file's (0)");
  s.threads_option = add_text(app, "-t,--threads", s.threads, "N", "0 means all usable cores (0)");
  s.engine_option =
      add_text(app, "--engine", s.engine, "NAME", "see `headwater info`; overrides HEADWATER_ENGINE");
  s.cache_option =
      add_text(app, "--cache-type", s.cache_type, "TYPE",
               "of stored keys and values: f16, bf16, f32, or auto, bf16 beside bf16 projections and "
               "else f16 (auto)");
  s.projections_option =
      add_text(app, "--projections", s.projections, "TYPE",
               "of products over many tokens: f32, bf16, or auto, what the processor multiplies (auto)");
}

ModelFlagReader::~ModelFlagReader() = default;

ModelFlags ModelFlagReader::read() const {
  const State& s = *state_;
  ModelFlags flags;
  flags.model = s.model;
  if (s.model_option->count() > 0 && flags.model.empty())
    throw Failure("-m (--model): '' is no name of a file");
  const auto integer = [](const CLI::Option* option, const char* name, const std::string& text,
                          std::int64_t low, std::int64_t high, auto& result) {
    using Integer = std::remove_reference_t<decltype(result)>;
    if (option->count() > 0) result = static_cast<Integer>(parse_integer(name, text, low, high));
  };
  integer(s.batch_option, "-b (--batch)", s.batch, 1, kMaxCount, flags.options.batch);
  integer(s.chunk_option, "-ub (--chunk)", s.chunk, 1, kMaxCount, flags.options.chunk);
  integer(s.local_option, "--h2o-local", s.local, 0, kMaxCount, flags.options.local);
  integer(s.heavy_option, "--h2o-heavy", s.heavy, 0, kMaxCount, flags.options.heavy);
  integer(s.threads_option, "-t (--threads)", s.threads, 0, kMostThreads, flags.options.threads);
  flags.options.clamp = !s.no_clamp;
  if (s.no_clamp && flags.options.local + flags.options.heavy > kMaxCount) {
    throw Failure(fmt::format("--h2o-local {} and --h2o-heavy {} make {} together; allowed are {}",
                              flags.options.local, flags.options.heavy,
                              flags.options.local + flags.options.heavy, kMaxCount));
  }
  if (s.context_option->count() > 0)
    flags.context = parse_integer("-c (--ctx-size)", s.context, 0, kMaxCount);
  if (flags.context == 0) flags.context.reset();
  if (s.engine_option->count() > 0) {
    if (s.engine.empty())
      throw Failure("--engine: '' is not allowed; use a name that `headwater info` lists");
    flags.engine = s.engine;
  }
  flags.precision = parse_precision(s.projections_option->count() > 0 ? s.projections : "auto");
  flags.cache_type = parse_cache_type(s.cache_option->count() > 0 ? s.cache_type : "auto", flags.precision);
  return flags;
}

}  // namespace headwater::cli
