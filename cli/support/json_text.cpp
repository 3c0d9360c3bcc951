#include "cli/support/json_text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

namespace headwater::cli {

std::string json_line(const nlohmann::ordered_json& json) {
  constexpr int kIndent = 2;
  return json.dump(kIndent, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

const char* score_type_name(ScoreType type) { return type == ScoreType::bf16 ? "bf16" : "f32"; }

const char* schedule_name(Schedule schedule) {
  return schedule == Schedule::layer_major ? "layer-major" : "chunk-major";
}

const char* select_name(const EffectiveOptions& effective) {
  if (effective.select == Select::h2o) return "h2o";
  if (effective.select == Select::sketches) return "sketches";
  const bool window = effective.heavy == effective.pinned && effective.key_block == 1 &&
                      effective.refine == 1 && effective.query_block == effective.chunk;
  return window ? "window" : "blocks";
}

std::vector<std::pair<const char*, nlohmann::ordered_json>> select_sizes(const EffectiveOptions& effective) {
  if (effective.select == Select::sketches) {
    return {{"query_block", effective.query_block}, {"least_weight", effective.least_weight}};
  }
  if (std::string_view(select_name(effective)) != "blocks") return {};
  return {{"key_block", effective.key_block},
          {"query_block", effective.query_block},
          {"pool", effective.pool},
          {"refine", effective.refine}};
}

void add_rule(nlohmann::ordered_json& json, const EffectiveOptions& effective) {
  json["select"] = select_name(effective);
  for (const auto& [name, value] : select_sizes(effective)) json[name] = value;
  json["pinned"] = effective.pinned;
  json["dense_below"] = effective.dense_below;
  json["dense_layers"] = effective.dense_layers;
}

std::vector<std::pair<std::string, std::string>> rule_facts(const EffectiveOptions& effective) {
  std::vector<std::pair<std::string, std::string>> facts;
  if (effective.select != Select::h2o) facts.emplace_back("select", select_name(effective));
  for (const auto& [name, value] : select_sizes(effective)) facts.emplace_back(name, value.dump());
  if (effective.pinned > 0) facts.emplace_back("pinned", std::to_string(effective.pinned));
  if (effective.dense_below > 0) facts.emplace_back("dense_below", std::to_string(effective.dense_below));
  if (!effective.dense_layers.empty()) {
    facts.emplace_back("dense_layers", fmt::format("{}", fmt::join(effective.dense_layers, ",")));
  }
  return facts;
}

std::string rule_text(const EffectiveOptions& effective) {
  std::string text;
  for (const auto& [name, value] : select_sizes(effective)) {
    text += fmt::format("{}{} {}", text.empty() ? " (" : ", ", name, value.dump());
  }
  text = fmt::format("select {}{}{}", select_name(effective), text, text.empty() ? "" : ")");
  if (effective.pinned > 0) text += fmt::format(", pinned {}", effective.pinned);
  if (effective.dense_below > 0) text += fmt::format(", dense below {}", effective.dense_below);
  if (effective.dense_layers.empty()) return text;
  return text + fmt::format(", dense layers {}", fmt::join(effective.dense_layers, ","));
}

}  // namespace headwater::cli
