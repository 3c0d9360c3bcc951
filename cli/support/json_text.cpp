#include "cli/support/json_text.hpp"

#include <fmt/format.h>

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
  return effective.heavy == 0 && effective.key_block == 1 ? "window" : "blocks";
}

std::vector<std::pair<const char*, std::int64_t>> select_sizes(const EffectiveOptions& effective) {
  if (std::string_view(select_name(effective)) != "blocks") return {};
  return {{"key_block", effective.key_block},
          {"query_block", effective.query_block},
          {"pool", effective.pool},
          {"refine", effective.refine}};
}

void add_rule(nlohmann::ordered_json& json, const EffectiveOptions& effective) {
  json["select"] = select_name(effective);
  for (const auto& [name, value] : select_sizes(effective)) json[name] = value;
}

std::string rule_text(const EffectiveOptions& effective) {
  std::string text;
  for (const auto& [name, value] : select_sizes(effective)) {
    text += fmt::format("{}{} {}", text.empty() ? " (" : ", ", name, value);
  }
  return fmt::format("select {}{}{}", select_name(effective), text, text.empty() ? "" : ")");
}

}  // namespace headwater::cli
