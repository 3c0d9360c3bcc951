#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "headwater/options.hpp"

namespace headwater::cli {

/// The object on indented lines with a line feed after it; bytes that are not UTF-8 become U+FFFD.
[[nodiscard]] std::string json_line(const nlohmann::ordered_json& json);

/// "bf16" or "f32", as --score-type takes it.
[[nodiscard]] const char* score_type_name(ScoreType type);
/// "layer-major" or "chunk-major", as --schedule takes it.
[[nodiscard]] const char* schedule_name(Schedule schedule);

/// "h2o", "blocks", "sketches" or "window", as --select takes it. Rule `blocks` with one set for a chunk, nothing to choose
/// and key blocks of one key is the window of the newest tokens, with the pinned ones.
[[nodiscard]] const char* select_name(const EffectiveOptions& effective);
/// Effective options as reports have them: the chunks and their memory sets, `more`, the rule and its sizes (SEL-1, SKE-1),
/// what stays exact.
[[nodiscard]] nlohmann::ordered_json effective_json(const EffectiveOptions& effective,
                                                    const nlohmann::ordered_json& more);
using Facts = std::vector<std::pair<std::string, std::string>>;  ///< names and values
[[nodiscard]] Facts plan_facts(const EffectiveOptions& effective);
/// Of the rule and what stays exact, without what says nothing: h2o, 0, no layers. Layers as "0,5,6".
[[nodiscard]] Facts rule_facts(const EffectiveOptions& effective);
/// The same for a reader: "select h2o", or "select blocks (key_block 8, query_block 32, pool 4, refine 2), pinned 8".
[[nodiscard]] std::string rule_text(const EffectiveOptions& effective);

}  // namespace headwater::cli
