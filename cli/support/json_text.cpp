#include "cli/support/json_text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "headwater/detail/option_table.hpp"

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

namespace {

/// The options of a part that the rule reads. A window is made of no sizes.
nlohmann::ordered_json part_json(detail::Part part, const EffectiveOptions& effective) {
  auto json = nlohmann::ordered_json::object();
  if (part == detail::Part::size && select_name(effective) == std::string_view("window")) return json;
  detail::for_each_option(part, [&](const auto& option) {
    if (option.read_by(effective.select)) json[option.name] = effective.*option.effective;
  });
  return json;
}

Facts part_facts(detail::Part part, const EffectiveOptions& effective) {
  Facts facts;
  const nlohmann::ordered_json json = part_json(part, effective);
  for (const auto& [name, value] : json.items()) facts.emplace_back(name, value.dump());
  return facts;
}

Facts exact_facts(const EffectiveOptions& effective) {
  Facts facts = part_facts(detail::Part::exact, effective);
  std::erase_if(facts, [](const auto& fact) { return fact.second == "0"; });
  if (!effective.dense_layers.empty())
    facts.emplace_back("dense_layers", fmt::format("{}", fmt::join(effective.dense_layers, ",")));
  return facts;
}

}  // namespace

nlohmann::ordered_json effective_json(const EffectiveOptions& effective, const nlohmann::ordered_json& more) {
  nlohmann::ordered_json json = part_json(detail::Part::plan, effective);
  json.update(more);
  json["select"] = select_name(effective);
  json.update(part_json(detail::Part::size, effective));
  json.update(part_json(detail::Part::exact, effective));
  json["dense_layers"] = effective.dense_layers;
  return json;
}

Facts plan_facts(const EffectiveOptions& effective) { return part_facts(detail::Part::plan, effective); }

Facts rule_facts(const EffectiveOptions& effective) {
  Facts facts = part_facts(detail::Part::size, effective);
  if (effective.select != Select::h2o) facts.emplace(facts.begin(), "select", select_name(effective));
  for (auto& fact : exact_facts(effective)) facts.push_back(std::move(fact));
  return facts;
}

std::string rule_text(const EffectiveOptions& effective) {
  std::string text;
  for (const auto& [name, value] : part_facts(detail::Part::size, effective)) {
    text += fmt::format("{}{} {}", text.empty() ? " (" : ", ", name, value);
  }
  text = fmt::format("select {}{}{}", select_name(effective), text, text.empty() ? "" : ")");
  for (auto& [name, value] : exact_facts(effective)) {
    std::ranges::replace(name, '_', ' ');
    text += fmt::format(", {} {}", name, value);
  }
  return text;
}

}  // namespace headwater::cli
