#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace headwater::fuzz {

/// A session of the reference and one of every other engine get the same random calls: prefill calls and
/// turns, decode steps, reset, calls that must be refused. All must agree on what is refused and with which code,
/// on state, tokens and plan; on memory sets as long as no near tie was decided differently; and on outputs under
/// equal sets. Returns the first disagreement, empty if there is none.
std::string run_ops(std::span<const std::uint8_t> bytes);

}  // namespace headwater::fuzz
