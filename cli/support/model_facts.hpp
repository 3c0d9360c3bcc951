#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/support/loaded_model.hpp"
#include "cli/support/model_memory.hpp"

namespace headwater::cli {

/// What a model file is, for `headwater info -m`. Refuses what loading it refuses, but for values of weights, which are not
/// read.
class ModelFacts {
 public:
  explicit ModelFacts(const ModelFlags& flags);

  [[nodiscard]] nlohmann::ordered_json json() const;
  [[nodiscard]] std::string text() const;
  [[nodiscard]] const std::vector<std::string>& warnings() const { return model_.warnings(); }

 private:
  LoadedModel model_;
  ModelMemory memory_;
  std::vector<std::pair<std::string, std::int64_t>> types_;  ///< tensors of each type, the most first
};

/// Layers whose prefill is exact because they see a window: "15 of 18 layers see a window of 512"; "" where there are none.
[[nodiscard]] std::string windows_text(const runtime::ModelConfig& config);

}  // namespace headwater::cli
