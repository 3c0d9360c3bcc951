#pragma once

#include "headwater/options.hpp"

/// Chapter 1 of the spec: configuration (CFG-1 .. CFG-4, SEL-1).
namespace headwater::reference {

/// CFG-1: every size within the limits that options.hpp documents, n_head a multiple of n_head_kv, and all
/// products of sizes that a session stores small enough for a signed 64-bit byte count. Errors:
/// invalid_argument; the message names the field, its value and what is allowed.
void validate(const Shape& shape);

/// CFG-1: the options by themselves and against the shape: batch, chunk 1 .. 2^31 - 1; local, heavy and
/// their sum 0 .. 2^31 - 1; scale finite; softcap finite and >= 0; sinks empty or n_head values, finite or
/// -inf; alibi empty or n_head finite values; threads 0 .. 512; checkpoints 0 .. 65536. With rule `blocks` also SEL-1,
/// of heavy as it was asked for. Errors: invalid_argument.
void validate(const Shape& shape, const Options& options);

/// CFG-2 (dense), CFG-3 (clamp; SEL-1) and CFG-4 (B >= S) applied to validated options, with a warning for each
/// change and for a batch that is no multiple of the chunk. `threads` is 1: the reference computes on the
/// calling thread. Errors: invalid_argument where the shape or the options are not allowed.
[[nodiscard]] EffectiveOptions resolve(const Shape& shape, const Options& options);

}  // namespace headwater::reference
