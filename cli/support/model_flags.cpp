#include "cli/support/model_flags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "cli/support/attention_flags.hpp"
#include "cli/support/chosen_engine.hpp"
#include "cli/support/failure.hpp"
#include "cli/support/numbers.hpp"
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

constexpr const char* kFactor = "rope.scaling.factor";
constexpr const char* kKind = "--rope-scaling";
constexpr const char* kInverse = "--rope-freq-scale";
constexpr const char* kOriginal = "--yarn-orig-ctx";
constexpr const char* kExtrapolated = "--yarn-ext-factor";

/// A number that a file keeps in 32 bits.
float parse_float(const char* flag, const std::string& text, double low) {
  const double number = parse_real(flag, text, low);
  constexpr double kMost = std::numeric_limits<float>::max();
  if (number <= kMost) return static_cast<float>(number);
  throw Failure(fmt::format("{}: {} is not allowed; use a number up to {:g}", flag, in_quotes(text), kMost));
}

}  // namespace

bool asks_for_model(const std::vector<std::string>& arguments) {
  return std::any_of(arguments.begin(), arguments.end(), [](const std::string& argument) {
    return argument.starts_with("-m") || argument == "--model" || argument.starts_with("--model=");
  });
}

void declare_rotation(FlagSet& set, std::vector<runtime::Replacement>& to) {
  const auto number = [&](const char* name, const char* key, double low, const char* help) {
    return set.value(name, "X", help, [=, &to](const std::string& text) {
      to.push_back({key, parse_float(name, text, low), name});
    });
  };
  set.value(kKind, "KIND", "of the rotary embedding: none, linear or yarn (the file's, or linear)",
            [&to](const std::string& text) {
              if (text != "none" && text != "linear" && text != "yarn") {
                throw Failure(
                    fmt::format("{}: {} is not allowed; use none, linear or yarn", kKind, in_quotes(text)));
              }
              to.push_back({"rope.scaling.type", text, kKind});
            });
  const auto* const scale = number(
      "--rope-scale", kFactor, 1, "the scaling stretches the context to X times as many tokens (the file's)");
  const auto* const inverse =
      set.value(kInverse, "X", "the same as --rope-scale 1/X", [&to](const std::string& text) {
        const float factor = static_cast<float>(1 / parse_real(kInverse, text, 0));
        if (!(factor >= 1) || factor > std::numeric_limits<float>::max()) {
          throw Failure(
              fmt::format("{}: {} is not allowed; use a number above 0, up to 1", kInverse, in_quotes(text)));
        }
        to.push_back({kFactor, factor, fmt::format("1 / {}", kInverse)});
      });
  number("--rope-freq-base", "rope.freq_base", 1, "base of the rotary embedding's frequencies (the file's)");
  set.value(kOriginal, "N", "YaRN: tokens that the model was trained on (the file's, or its context)",
            [&to](const std::string& text) {
              to.push_back({"rope.scaling.original_context_length",
                            parse_integer(kOriginal, text, 1, kMaxCount), kOriginal});
            });
  set.value(kExtrapolated, "X", "YaRN: 1, the only blend of frequencies that is computed (1)",
            [&to](const std::string& text) {
              if (parse_float(kExtrapolated, text, std::numeric_limits<double>::lowest()) != 1) {
                throw Failure(fmt::format("{}: {} is not allowed; use 1, or --rope-scaling linear for 0",
                                          kExtrapolated, in_quotes(text)));
              }
              to.push_back({"rope.scaling.yarn_ext_factor", 1.0F, kExtrapolated});
            });
  number("--yarn-attn-factor", "rope.scaling.attn_factor", 0,
         "YaRN: its magnitude 1 + 0.1 ln(scale) is multiplied by X, above 0 (the file's, or 1)");
  number("--yarn-beta-slow", "rope.scaling.yarn_beta_slow", 0,
         "YaRN: pairs that turn less often are interpolated (the file's, or 1)");
  number("--yarn-beta-fast", "rope.scaling.yarn_beta_fast", 0,
         "YaRN: pairs that turn more often stay as they are (the file's, or 32)");
  set.check([scale, inverse] {
    if (scale->count() == 0 || inverse->count() == 0) return;
    throw Failure(fmt::format("--rope-scale {} and {} {} are both given; allowed is one of them",
                              scale->results().front(), kInverse, inverse->results().front()));
  });
}

CLI::Option* ModelFlags::declare_cache(FlagSet& set) {
  using Cache = std::pair<std::optional<DType>, std::int64_t>;
  CLI::Option* const option = set.choice(
      "--cache-type", "TYPE",
      "of stored keys and values: f16, bf16, f32, auto, bf16 where projections use it and else f16, or "
      "q8_0, which is auto in 8 bits, as --kv-bits 8 (auto)",
      "auto, f16, bf16, f32 or q8_0",
      {{"auto", Cache()},
       {"f16", Cache(DType::f16, 0)},
       {"bf16", Cache(DType::bf16, 0)},
       {"f32", Cache(DType::f32, 0)},
       {"q8_0", Cache(std::nullopt, 8)}},
      named_cache_);
  set.check([this, &set] {
    cache_type = named_cache_.first.value_or(
        row_precision(precision) == runtime::Precision::bf16 ? DType::bf16 : DType::f16);
    if (named_cache_.second == 0) return;
    const CLI::Option* const bits = set.app().get_option_no_throw("--kv-bits");
    if (bits != nullptr && bits->count() > 0 && options.kv_bits != named_cache_.second)
      throw Failure(fmt::format("--cache-type q8_0 and --kv-bits {} contradict each other; give one of them",
                                options.kv_bits));
    options.kv_bits = named_cache_.second;
  });
  return option;
}

void ModelFlags::declare(FlagSet& set, bool model_required) {
  set.file("-m,--model", "-m (--model)", "MODEL", "a GGUF file (headwater info -m says what it is)", model)
      ->required(model_required);
  declare_memory_sets(set, options);
  set.integer("-c,--ctx-size", "-c (--ctx-size)", 0, kMaxCount,
              "most tokens of the conversation; 0: the file's (0)", context);
  declare_rotation(set, rotation);
  declare_threads(set, options);
  declare_engine(set, engine);
  declare_cache(set);
  precision = runtime::automatic_precision();
  set.value(
      "--projections", "TYPE",
      "of products over many tokens: f32, bf16, int8 beside quantised weights, or auto, what the processor "
      "multiplies best (auto)",
      [this](const std::string& text) { precision = parse_precision(text); });
  set.check([this] {
    if (context == 0) context.reset();
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
