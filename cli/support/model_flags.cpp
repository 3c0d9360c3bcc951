#include "cli/support/model_flags.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cli/support/attention_flags.hpp"
#include "cli/support/chosen_engine.hpp"
#include "cli/support/failure.hpp"
#include "cli/support/text.hpp"
#include "headwater/preset.hpp"

namespace headwater::cli {
namespace {

runtime::Precision parse_precision(const std::string& text) {
  using runtime::Precision;
  if (text == "auto") return runtime::automatic_precision();
  for (const auto& [name, precision] :
       {std::pair{"f32", Precision::f32}, {"bf16", Precision::bf16}, {"int8", Precision::int8}}) {
    if (text != name) continue;
    const std::string missing = runtime::missing_for(precision);
    if (missing.empty()) return precision;
    throw Failure(fmt::format("--projections: {} needs a processor with {}, this one has {}; use f32 or auto",
                              name, missing, runtime::product_isa()));
  }
  throw Failure(
      fmt::format("--projections: {} is not allowed; use auto, f32, bf16 or int8", in_quotes(text)));
}

}  // namespace

bool asks_for_model(const std::vector<std::string>& arguments) {
  return std::any_of(arguments.begin(), arguments.end(), [](const std::string& argument) {
    return argument.starts_with("-m") || argument == "--model" || argument.starts_with("--model=");
  });
}

void ModelFlags::declare(FlagSet& set, bool model_required) {
  set.file("-m,--model", "-m (--model)", "MODEL", "a GGUF file (headwater info -m says what it is)", model)
      ->required(model_required);
  declare_memory_sets(set, options);
  set.integer("-c,--ctx-size", "-c (--ctx-size)", 0, kMaxCount,
              "most tokens of the conversation; 0: the file's (0)", context);
  declare_threads(set, options);
  declare_engine(set, engine);
  using Cache = std::optional<DType>;
  set.choice(
      "--cache-type", "TYPE",
      "of stored keys and values: f16, bf16, f32, or auto, bf16 where projections use it and else f16 (auto)",
      "auto, f16, bf16 or f32",
      {{"auto", Cache()}, {"f16", DType::f16}, {"bf16", DType::bf16}, {"f32", DType::f32}},
      named_cache_type_);
  precision = runtime::automatic_precision();
  set.value(
      "--projections", "TYPE",
      "of products over many tokens: f32, bf16, int8 beside quantised weights, or auto, what the processor "
      "multiplies best (auto)",
      [this](const std::string& text) { precision = parse_precision(text); });
  set.check([this] {
    if (context == 0) context.reset();
    cache_type = named_cache_type_.value_or(
        row_precision(precision) == runtime::Precision::bf16 ? DType::bf16 : DType::f16);
  });
}

void ModelFlags::declare_quality(FlagSet& set, bool& dense) {
  options = preset(Quality::balanced);
  set.value(
      "--quality", "NAME",
      "how close to dense prefill, by figures of real models: fast, balanced, or exact, which is --dense "
      "(balanced)",
      [this, &dense](const std::string& text) {
        if (text == "exact") {
          dense = true;
        } else if (text == "fast" || text == "balanced") {
          options = preset(text == "fast" ? Quality::fast : Quality::balanced);
        } else {
          throw Failure(
              fmt::format("--quality: {} is not allowed; use fast, balanced or exact", in_quotes(text)));
        }
      });
}

void ModelFlags::keep_to_rules_of_engine(FlagSet& set) {
  const CLI::App& app = set.app();
  if (app.count("--select") > 0 || has_rule(chosen_engine(engine), options.select)) return;
  const Options plain;
  options.select = plain.select;
  if (app.count("--h2o-local") == 0) options.local = plain.local;
  if (app.count("--h2o-heavy") == 0) options.heavy = plain.heavy;
  if (app.count("--pinned") == 0) options.pinned = plain.pinned;
}

}  // namespace headwater::cli
