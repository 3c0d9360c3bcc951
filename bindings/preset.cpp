// The one table of defaults that rest on measurements. The program, the C ABI and the Python package read it.

#include "headwater/preset.hpp"

#include "headwater/error.hpp"

namespace headwater {
namespace {

// A real model looks at its first tokens from everywhere (attention sinks): a set without them diverges two to eight times
// as far.
constexpr std::int64_t kPinned = 8;

Options blocks(std::int64_t local, std::int64_t heavy, std::int64_t pool, std::int64_t refine) {
  Options options;
  options.select = Select::blocks;
  options.local = local;
  options.heavy = heavy;
  options.pool = pool;
  options.refine = refine;
  options.pinned = kPinned;
  return options;
}

}  // namespace

bool has_blocks(const Engine& engine) {
  // Claims do not say it: the smallest session of the rule is opened.
  Options options;
  options.select = Select::blocks;
  options.threads = 1;
  Shape shape;
  shape.capacity = 1;
  try {
    (void)engine.open(shape, options);
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument) throw;
    return false;
  }
}

Options preset(Quality quality) {
  if (quality == Quality::fast) return blocks(32, 480, 8, 1);
  if (quality == Quality::balanced) return blocks(32, 480, 4, 2);
  Options dense;
  dense.dense = true;
  return dense;
}

Options preset(Quality quality, const Engine& engine) {
  return quality == Quality::exact || has_blocks(engine) ? preset(quality) : Options{};
}

}  // namespace headwater
