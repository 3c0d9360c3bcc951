#include "cli/support/model_memory.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cli/support/failure.hpp"
#include "cli/support/machine.hpp"
#include "cli/support/text.hpp"

namespace headwater::cli {
namespace {

constexpr std::int64_t kGroup = 32, kGroupBytes = 34;  // STATE-13

}  // namespace

std::int64_t stored_bytes(std::int64_t width, DType type, std::int64_t kv_bits) {
  return kv_bits == 8 ? width / kGroup * kGroupBytes : width * static_cast<std::int64_t>(dtype_size(type));
}

ModelMemory model_memory(const ModelFlags& flags, const runtime::ModelConfig& config, double weights,
                         std::int64_t capacity, int sessions) {
  const auto number = [](std::int64_t value) { return static_cast<double>(value); };
  const double row = number(config.d_head + config.d_value) * number(config.heads_kv);
  const double scores = 2.0 * number(config.heads);
  ModelMemory memory;
  memory.weights = weights;
  const double stored =
      number(stored_bytes(config.d_head + config.d_value, flags.cache_type, flags.options.kv_bits));
  const std::int64_t recurrent = config.recurrent_layers();
  memory.cache = sessions * (number(config.layers - recurrent) * number(capacity) *
                                 (stored * number(config.heads_kv) + scores) +
                             number(recurrent) * number(config.delta.state_floats()) * sizeof(float));
  const double batch = number(std::min(std::max(flags.options.batch, flags.options.chunk), capacity));
  const double widths = number(config.width) * (config.norms_after ? 3 : 2) +
                        number(config.heads) * number(config.d_head + config.d_value) + row +
                        number(config.widest_feed_forward()) +
                        2 * number(config.delta.channels() + config.delta.value_heads * config.delta.d);
  memory.workspace = sessions * batch * widths * sizeof(float);
  return memory;
}

void check_cache_type(const ModelFlags& flags, const runtime::ModelConfig& config) {
  if (flags.options.kv_bits != 8) return;
  for (const std::int64_t width : {config.d_head, config.d_value}) {
    if (width % kGroup == 0) continue;
    throw Failure(fmt::format(
        "--cache-type q8_0 (--kv-bits 8): the model has heads of {}, no multiple of {}; use f16, bf16 or f32",
        width, kGroup));
  }
}

void check_model_memory(const std::string& name, const ModelFlags& flags, const runtime::ModelConfig& config,
                        double weights, std::int64_t capacity, int sessions) {
  const ModelMemory memory = model_memory(flags, config, weights, capacity, sessions);
  const std::uint64_t limit = memory_limit();
  if (memory.total() <= static_cast<double>(limit)) return;
  const auto text = [](double bytes) {
    return bytes_text(static_cast<std::uint64_t>(std::min(bytes, 9e18)));
  };
  throw Failure(fmt::format(
      "{}: {} of weights, {} of cache for {}{} tokens and {} of workspace make {}, but the machine "
      "has {}; use a smaller model, -c or -b",
      in_quotes(name), text(weights), text(memory.cache),
      sessions > 1 ? fmt::format("{} times ", sessions) : "", capacity, text(memory.workspace),
      text(memory.total()), bytes_text(limit)));
}

MemoryBytes memory_when_full(const Session& session) {
  const Shape& shape = session.shape();
  MemoryBytes bytes = session.memory_bytes();
  bytes.kv = shape.n_layer * shape.n_head_kv * shape.capacity *
             stored_bytes(shape.d_head + shape.d_value, shape.kv_type, session.options().kv_bits);
  return bytes;
}

}  // namespace headwater::cli
