#pragma once

#include <string_view>

#include "headwater/options.hpp"

namespace headwater::core {

/// Limits that options.hpp documents.
inline constexpr std::int64_t kMaxPosition = 2147483647;  // positions are 32-bit
inline constexpr std::int64_t kMaxExtent = 65536;         // layers, heads, row widths
inline constexpr std::int64_t kMaxThreads = 512;
inline constexpr std::int64_t kPageMultiple = 256;

/// The effective options (CFG-1..4). Throws Error invalid_argument naming field, value and what is allowed.
/// `default_threads` is what threads = 0 stands for.
EffectiveOptions resolve(const Shape& shape, const Options& options, int default_threads);

/// Throws Error invalid_argument where the options want rule sketches, which `engine` does not have.
void require_no_sketches(const Options& options, std::string_view engine);

/// Throws Error unsupported where the options want checkpoints, and the engine does not truncate.
void require_no_checkpoints(const Options& options, std::string_view engine);
/// STATE-13: `unsupported` where rows are to be packed.
void require_no_kv_bits(const Options& options, std::string_view engine);
/// LAYER-1: `unsupported` where a layer is to have options of its own.
void require_equal_layers(const Options& options, std::string_view engine);
/// HOST-2: `unsupported` where the host is to give the memory.
void require_own_memory(const Options& options, std::string_view engine);
/// ROWS-1: `unsupported` where the caller is to keep the rows.
void require_own_rows(const Options& options, std::string_view engine);

/// Throws Error invalid_argument where the options want device rows or a device, and the engine has none.
void require_no_device(const Options& options, std::string_view engine);

}  // namespace headwater::core
