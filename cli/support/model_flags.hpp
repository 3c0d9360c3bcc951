#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/support/flag_set.hpp"
#include "cli/support/ranks.hpp"
#include "headwater/options.hpp"
#include "runtime/gguf/metadata.hpp"
#include "runtime/model/panel_product.hpp"

namespace headwater::cli {

/// What every command that runs a model asks for.
struct ModelFlags {
  std::string model;              ///< a GGUF file
  std::string engine;             ///< empty: HEADWATER_ENGINE, or the library's default
  Options options;                ///< batch, chunk, memory set, threads, kv_bits
  DType cache_type = DType::f16;  ///< of the stored keys and values, or of the restored ones (STATE-13)
  runtime::Precision precision =
      runtime::Precision::f32;                 ///< of projections; --projections auto is the processor's
  std::optional<std::int64_t> context;         ///< -c unless it is 0; else the file's
  std::vector<runtime::Replacement> rotation;  ///< --rope-..., --yarn-...: for open_model_file()
  RankFlags ranks;                             ///< of commands that can run on several

  /// Declares them all. Without `model_required` an absent -m leaves `model` empty. The object must stay where it is until
  /// the set has parsed.
  void declare(FlagSet& set, bool model_required = true);

  /// --cache-type alone, for `precision`; goes with --kv-bits where the set has that.
  CLI::Option* declare_cache(FlagSet& set);

  /// What reports call the cache: "F16", "Q8_0".
  [[nodiscard]] const char* cache_name() const {
    return options.kv_bits == 8 ? "Q8_0" : dtype_name(cache_type);
  }

  /// --quality, before declare(): what that is given replaces values of the preset. `dense`: of `exact`.
  void declare_quality(FlagSet& set, bool& dense);
  /// An engine without the preset's rule gets rule `h2o` where none was asked for, with its own shares of the budget: after
  /// the set has parsed.
  void keep_to_rules_of_engine(FlagSet& set);

 private:
  /// --cache-type: its type, none of auto and q8_0, and its kv_bits.
  std::pair<std::optional<DType>, std::int64_t> named_cache_;
};

/// The flags that stand in place of what a file says of its rotary embedding, as llama.cpp spells them; `to` as
/// open_model_file() takes it. It must stay where it is until the set has parsed.
void declare_rotation(FlagSet& set, std::vector<runtime::Replacement>& to);

/// Whether the arguments after a command's name name a model (-m).
[[nodiscard]] bool asks_for_model(const std::vector<std::string>& arguments);

}  // namespace headwater::cli
