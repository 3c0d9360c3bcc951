// The one table of defaults that rest on measurements. The program, the C ABI and the Python package read it.

#include "headwater/preset.hpp"

#include "headwater/error.hpp"

namespace headwater {
namespace {

// A real model looks at its first tokens from everywhere (attention sinks): a set without them diverges two to eight times
// as far.
constexpr std::int64_t kPinned = 8;

Options with_pinned(Select rule) {
  Options options;
  options.select = rule;
  options.local = 32;
  options.heavy = 480;
  options.pinned = kPinned;
  return options;
}

}  // namespace

bool has_rule(const Engine& engine, Select rule) {
  // Claims do not say it: the smallest session of the rule is opened.
  Options options;
  options.select = rule;
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
  if (quality == Quality::balanced) return with_pinned(Select::sketches);
  Options options;
  if (quality == Quality::exact) {
    options.dense = true;
  } else {
    options = with_pinned(Select::blocks);
    options.pool = 8;
    options.refine = 1;
  }
  return options;
}

Options preset(Quality quality, const Engine& engine) {
  const Options options = preset(quality);
  return options.dense || has_rule(engine, options.select) ? options : Options{};
}

}  // namespace headwater
