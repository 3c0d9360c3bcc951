#pragma once

// The options of a session that are plain numbers, a row each: what checks, copies, saves, reads or says options walks these
// rows. The reference and the conformance kit, which check it, have code of their own.

#include <cstdint>
#include <limits>
#include <tuple>
#include <type_traits>

#include "headwater/headwater.h"
#include "headwater/options.hpp"

namespace headwater::detail {

/// What an option is about, and so where it is said.
enum class Part : std::uint8_t {
  plan,   ///< chunks, and how much of the past they see: in every report
  size,   ///< of some rules: with others it is not read, is 0 among the effective options, and is not said
  exact,  ///< what stays exact, and how exact: in every report; among facts where it is not 0
  store,  ///< how tokens are kept, which changes no result: nowhere
};

/// Rules that read an option, a bit each.
inline constexpr unsigned kBlocks = 1U << static_cast<unsigned>(Select::blocks);
inline constexpr unsigned kSketches = 1U << static_cast<unsigned>(Select::sketches);
inline constexpr unsigned kEveryRule = ~0U;

/// Numbers that are allowed: `least` .. `most`, or below `most` where they are no integers.
template <class Number>
struct Range {
  Number least, most;
  Number Options::*at_most =
      nullptr;          ///< an option of an earlier row, which it does not exceed either; null: none
  Number multiple = 1;  ///< of which an integer is a multiple
};

/// How the program takes an option.
struct Flag {
  const char* names = nullptr;   ///< as CLI11 takes them; null: it does not
  const char* help = nullptr;    ///< without the default
  const char* spoken = nullptr;  ///< in messages; null: as `names`
};

template <class Number>
struct Option {
  const char* name;  ///< of the field: in messages, JSON and files
  Number Options::*asked;
  Number EffectiveOptions::*effective;
  Number headwater_options::*c;
  Number headwater_effective_options::*c_effective;
  Part part;
  Range<Number> range;
  Flag flag;
  unsigned rules;

  [[nodiscard]] constexpr bool read_by(Select rule) const {
    return (rules >> static_cast<unsigned>(rule) & 1U) != 0;
  }
};

template <class Number>
constexpr Option<Number> option(const char* name, Number Options::*asked, Number EffectiveOptions::*effective,
                                Number headwater_options::*c,
                                Number headwater_effective_options::*c_effective, Part part,
                                std::type_identity_t<Range<Number>> range, Flag flag = {},
                                unsigned rules = kEveryRule) {
  return {name, asked, effective, c, c_effective, part, range, flag, rules};
}

inline constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();  // positions are 32-bit

// The field of this name in each of the four structures.
#define HEADWATER_FIELD(name) \
#name, &Options::name, &EffectiveOptions::name, &headwater_options::name, &headwater_effective_options::name

inline constexpr std::tuple kOptions{
    option(HEADWATER_FIELD(batch), Part::plan, {1, kMost},
           {"-b,--batch,--batch-size", "B, logical batch: tokens of one prefill call", "-b (--batch)"}),
    option(
        HEADWATER_FIELD(chunk), Part::plan, {1, kMost},
        {"--ubatch-size,--chunk", "S, chunk: tokens with full causal attention; also -ub", "-ub (--chunk)"}),
    option(HEADWATER_FIELD(local), Part::plan, {0, kMost},
           {"--h2o-local", "L, newest tokens always kept in the memory set"}),
    option(HEADWATER_FIELD(heavy), Part::plan, {0, kMost},
           {"--h2o-heavy", "H, tokens kept because of their score or votes"}),
    option(HEADWATER_FIELD(key_block), Part::size, {1, 256, &Options::chunk},
           {"--key-block", "keys of a key block, with --select blocks"}, kBlocks),
    option(HEADWATER_FIELD(query_block), Part::size, {1, kMost, &Options::chunk},
           {"--query-block", "rows that share a set, with --select blocks or sketches"}, kBlocks | kSketches),
    option(HEADWATER_FIELD(pool), Part::size, {1, kMost, &Options::query_block},
           {"--pool", "rows whose mean votes, half as many on single keys; with --select blocks"}, kBlocks),
    option(HEADWATER_FIELD(refine), Part::size, {1, 16},
           {"--refine", "tokens are chosen from N times as many; 1: whole key blocks; with --select blocks"},
           kBlocks),
    option(HEADWATER_FIELD(least_weight), Part::size, {0, 1},
           {"--least-weight",
            "tokens of less weight, where a row has 1 without them, are not chosen; 0: all may be; with "
            "--select sketches"},
           kSketches),
    option(HEADWATER_FIELD(pinned), Part::exact, {0, kMost, &Options::heavy},
           {"--pinned", "first tokens that keep their places in the memory set, part of H"}),
    option(HEADWATER_FIELD(dense_below), Part::exact, {0, kMost},
           {"--dense-below", "prefill turns of fewer tokens are dense"}),
    option(HEADWATER_FIELD(kv_bits), Part::exact, {0, 8, nullptr, 8},
           {"--kv-bits", "bits of a stored element of keys and values, 0 or 8; 0: those of their type"}),
    option(HEADWATER_FIELD(checkpoints), Part::store, {0, 65536}),
    option(HEADWATER_FIELD(page), Part::store, {256, 2147483392, nullptr, 256}),
};

#undef HEADWATER_FIELD

/// Calls visit(option) for each row, in order.
template <class Visit>
void for_each_option(const Visit& visit) {
  std::apply([&](const auto&... option) { (visit(option), ...); }, kOptions);
}

/// The same for those of one part.
template <class Visit>
void for_each_option(Part part, const Visit& visit) {
  for_each_option([&](const auto& option) {
    if (option.part == part) visit(option);
  });
}

}  // namespace headwater::detail
