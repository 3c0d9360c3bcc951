#pragma once

#include <cstdint>
#include <string>

#include "cli/support/flag_set.hpp"
#include "headwater/options.hpp"

// The flags of attention, the same in every command that takes them.

namespace headwater::cli {

/// -b, -ub, --h2o-local, --h2o-heavy, --h2o-no-clamp: the chunks of a prompt and the memory set of each. --select,
/// --key-block and the other sizes: the rule of the sets. `--select window` is rule `blocks` with nothing to choose: one
/// set for each chunk, of the newest L + H tokens, or of the --pinned first and the newest of the rest.
/// --pinned, --dense-layers and others: what stays exact.
void declare_memory_sets(FlagSet& set, Options& options);
/// Failure where --dense-layers names one that a model of so many layers has not.
void check_dense_layers(const Options& options, std::int64_t layers);
/// --schedule.
void declare_schedule(FlagSet& set, Options& options);
/// --engine; empty stays HEADWATER_ENGINE, or the library's default.
void declare_engine(FlagSet& set, std::string& engine);
/// -t; 0 means all usable cores.
void declare_threads(FlagSet& set, Options& options);

}  // namespace headwater::cli
