#pragma once

#include <cstdint>
#include <optional>
#include <string>
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
  Options options;                ///< batch, chunk, memory set, threads
  DType cache_type = DType::f16;  ///< of the stored keys and values
  runtime::Precision precision =
      runtime::Precision::f32;                 ///< of projections; --projections auto is the processor's
  std::optional<std::int64_t> context;         ///< -c unless it is 0; else the file's
  std::vector<runtime::Replacement> rotation;  ///< --rope-..., --yarn-...: for open_model_file()
  RankFlags ranks;                             ///< of commands that can run on several

  /// Declares them all. Without `model_required` an absent -m leaves `model` empty. The object must stay where it is until
  /// the set has parsed.
  void declare(FlagSet& set, bool model_required = true);

  /// --quality, before declare(): what that is given replaces values of the preset. `dense`: of `exact`.
  void declare_quality(FlagSet& set, bool& dense);
  /// An engine without the preset's rule gets rule `h2o` where none was asked for, with its own shares of the budget: after
  /// the set has parsed.
  void keep_to_rules_of_engine(FlagSet& set);

 private:
  std::optional<DType> named_cache_type_;  ///< --cache-type; auto is none
};

/// The flags that stand in place of what a file says of its rotary embedding, as llama.cpp spells them; `to` as
/// open_model_file() takes it. It must stay where it is until the set has parsed.
void declare_rotation(FlagSet& set, std::vector<runtime::Replacement>& to);

/// Whether the arguments after a command's name name a model (-m).
[[nodiscard]] bool asks_for_model(const std::vector<std::string>& arguments);

}  // namespace headwater::cli
