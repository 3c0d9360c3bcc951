#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands/bench/shapes.hpp"
#include "cli/support/model_flags.hpp"
#include "runtime/gguf/tensor_type.hpp"

namespace headwater::bench {

/// What `headwater bench -m` and `headwater bench --random` were asked for.
struct ModelBenchFlags {
  cli::ModelFlags model;            ///< model.model is empty with --random
  std::optional<ModelShape> shape;  ///< --random, with the layers of --cut
  runtime::TensorType type = runtime::TensorType::q8_0;
  std::vector<std::int64_t> tokens = {512, 2048, 4096};  ///< prompts
  std::int64_t decode = 16;                              ///< tokens generated after each
  int slots = 1;  ///< conversations that are decoded together, beside one alone
  std::int64_t dense_tail = 64;
  int rounds = 3;
  std::uint64_t seed = 1;
  bool dense = true;  ///< time dense prefill too
  bool json = false;
  std::optional<std::string> save;  ///< write the random model to this file and do nothing else
};

/// Whether these are arguments of a model's benchmark, and not of attention alone.
[[nodiscard]] bool is_model_bench(const std::vector<std::string>& arguments);
/// As parse_flags() of flags.hpp.
[[nodiscard]] std::optional<ModelBenchFlags> parse_model_flags(const std::vector<std::string>& arguments);

}  // namespace headwater::bench
