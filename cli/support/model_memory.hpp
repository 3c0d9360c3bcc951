#pragma once

#include <cstdint>
#include <string>

#include "cli/support/model_flags.hpp"
#include "headwater/session.hpp"
#include "runtime/model/model_config.hpp"

namespace headwater::cli {

/// Bytes of `width` stored elements, whole rows of one type (STATE-13).
[[nodiscard]] std::int64_t stored_bytes(std::int64_t width, DType type, std::int64_t kv_bits);

/// What a model takes at least, in bytes: doubles, so that no product of hostile sizes can overflow.
struct ModelMemory {
  double weights = 0;
  double cache = 0;      ///< rows and scores of `sessions` sessions
  double workspace = 0;  ///< of a step of the longest batch
  [[nodiscard]] double total() const { return weights + cache + workspace; }
};
[[nodiscard]] ModelMemory model_memory(const ModelFlags& flags, const runtime::ModelConfig& config,
                                       double weights, std::int64_t capacity, int sessions = 1);

/// Failure where rows of 8 bits are asked for, and heads have no whole groups (STATE-13).
void check_cache_type(const ModelFlags& flags, const runtime::ModelConfig& config);

/// Failure, with the numbers, where `weights` bytes and `sessions` sessions of `capacity` tokens need more memory than
/// the machine has: asked before anything is taken. What is counted is the least that a run takes.
void check_model_memory(const std::string& name, const ModelFlags& flags, const runtime::ModelConfig& config,
                        double weights, std::int64_t capacity, int sessions = 1);

/// What a session holds once it is full: pages of rows are taken as tokens come.
MemoryBytes memory_when_full(const Session& session);

}  // namespace headwater::cli
