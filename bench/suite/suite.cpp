#include "bench/suite/suite.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <list>

namespace headwater::bench {

namespace {

constexpr double kMostBytes = 0x1p32;  ///< of prepared cases that are kept
constexpr std::uint64_t kSeed = 1;

struct Kept {
  std::string name;
  double bytes;
  std::unique_ptr<Prepared> prepared;
};

}  // namespace

std::string LayerCase::name() const {
  return fmt::format("engine:{}/type:{}/n:{}/chunk:{}/memory:{}/heads:{}/kv:{}/d:{}/dv:{}/threads:{}/{}",
                     engine, dtype_name(shape.kv_type), shape.capacity, options.chunk,
                     options.local + options.heavy, shape.n_head, shape.n_head_kv, shape.d_head,
                     shape.d_value, options.threads,
                     options.schedule == Schedule::layer_major ? "layer-major" : "chunk-major");
}

LayerCase base_case(const std::string& engine, DType type) {
  LayerCase base;
  base.engine = engine;
  base.shape.n_head = 4;
  base.shape.n_head_kv = 2;
  base.shape.d_head = base.shape.d_value = 128;
  base.shape.capacity = 4096;
  base.shape.kv_type = type;
  base.options.threads = 1;
  return base;
}

Prepared::Prepared(const LayerCase& from, std::int64_t prefilled, std::int64_t decoded)
    : workload(from.shape, kSeed), run(engine(from.engine), workload, from.options) {
  static_cast<void>(run.check(prefilled, decoded, kSeed));
}

Prepared& prepared(const LayerCase& wanted, std::int64_t prefilled, std::int64_t decoded) {
  static std::list<Kept> kept;  // used last stands first
  const std::string name = fmt::format("{}/{}/{}+{}", wanted.name(),
                                       wanted.options.dense ? "dense" : "sparse", prefilled, decoded);
  const auto found =
      std::find_if(kept.begin(), kept.end(), [&](const Kept& entry) { return entry.name == name; });
  if (found != kept.end()) {
    kept.splice(kept.begin(), kept, found);
    return *kept.front().prepared;
  }
  const double bytes = Workload::bytes(wanted.shape) + session_bytes(wanted.shape);
  double total = bytes;
  for (const Kept& entry : kept) total += entry.bytes;
  while (!kept.empty() && total > kMostBytes) {
    total -= kept.back().bytes;
    kept.pop_back();
  }
  kept.push_front({name, bytes, std::make_unique<Prepared>(wanted, prefilled, decoded)});
  return *kept.front().prepared;
}

std::vector<std::string> engine_names() {
  std::vector<std::string> names;
  for (const Engine* engine : engines()) {
    if (engine->name() != "reference" && engine->unavailable_because().empty())
      names.emplace_back(engine->name());
  }
  return names;
}

}  // namespace headwater::bench
