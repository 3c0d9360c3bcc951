#include "cli/support/json_text.hpp"

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

}  // namespace headwater::cli
