#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "headwater/options.hpp"
#include "headwater/session.hpp"
#include "headwater/state.hpp"
#include "reference/history.hpp"
#include "reference/storage.hpp"

/// Chapter 2 of the spec: what a session saves (STATE-12), and the checks of what it loads. state.hpp names the parts.
/// All functions give to the archive or take from it, as it says. Errors: invalid_argument, those of the archive.
namespace headwater::reference {

/// `chunks` and `steps`; loading: into an empty history, each step held against STATE and PLAN. Returns the tokens.
std::int64_t exchange_steps(StateArchive& archive, const EffectiveOptions& options, std::int64_t capacity,
                            History& history);

/// Floats that results depend on, as the integers of their bits: those of the archive must be the session's own.
void exchange_floats(StateArchive& archive, const std::string& name, const std::vector<float>& own);

/// Rule h2o, `sets`; loading: each count and end is the one that follows from the chunks (MEM-4, MEM-5).
void exchange_set_sizes(StateArchive& archive, const EffectiveOptions& options, std::span<const Chunk> chunks,
                        std::span<LayerStorage> layers);

/// The rows of a layer, unless the caller keeps them, and with rule h2o its scores and sets, which are checked (MEM-4).
void exchange_layer(StateArchive& archive, const EffectiveOptions& options, std::int64_t tokens,
                    std::int64_t layer, LayerStorage& storage);

}  // namespace headwater::reference
