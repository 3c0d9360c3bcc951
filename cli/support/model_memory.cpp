#include "cli/support/model_memory.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cli/support/failure.hpp"
#include "cli/support/machine.hpp"
#include "cli/support/text.hpp"

namespace headwater::cli {

ModelMemory model_memory(const ModelFlags& flags, const runtime::ModelConfig& config, double weights,
                         std::int64_t capacity, int sessions) {
  const auto number = [](std::int64_t value) { return static_cast<double>(value); };
  const double row = number(config.d_head + config.d_value) * number(config.heads_kv);
  const double scores = 2.0 * number(config.heads);
  ModelMemory memory;
  memory.weights = weights;
  memory.cache = sessions * number(config.layers) * number(capacity) *
                 (row * static_cast<double>(dtype_size(flags.cache_type)) + scores);
  const double batch = number(std::min(std::max(flags.options.batch, flags.options.chunk), capacity));
  const double widths = number(config.width) * (config.norms_after ? 3 : 2) +
                        number(config.heads) * number(config.d_head + config.d_value) + row +
                        number(config.widest_feed_forward());
  memory.workspace = sessions * batch * widths * sizeof(float);
  return memory;
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
  bytes.kv = shape.n_layer * shape.n_head_kv * shape.capacity * (shape.d_head + shape.d_value) *
             static_cast<std::int64_t>(dtype_size(shape.kv_type));
  return bytes;
}

}  // namespace headwater::cli
