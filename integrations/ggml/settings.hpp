#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "headwater/options.hpp"

namespace headwater::ggml {

/// Newest tokens that every row reads outside its chunk, as in preset(Quality::balanced).
inline constexpr std::int64_t kLocal = 32;

/// What HEADWATER_GGML says; docs/llamacpp.md has the table.
struct Settings {
  std::int64_t memory = 512;        ///< keys outside its chunk that a row reads at most
  std::int64_t pinned = 8;          ///< first tokens among them
  std::int64_t chunk = 1024;        ///< tokens with full causal attention among themselves
  std::int64_t dense_below = 2048;  ///< contexts of so many tokens or fewer are dense
  std::int64_t dense_tail = 64;     ///< last rows of a call that see every token
  bool every_tail = true;           ///< of every call; else of those that are shorter than the host's longest
  bool dense = false;               ///< every call is dense
  double least_weight = Options{}.least_weight;  ///< SKE-7
  int threads = 0;                               ///< 0: as many as the host uses
  bool quiet = false;                            ///< nothing is said but errors
};

/// Reads "memory=512,dense=1". False where it is not understood; `why` is then one line that says what is wrong and what is
/// allowed, and `settings` is not changed.
bool parse_settings(std::string_view text, Settings& settings, std::string& why);

}  // namespace headwater::ggml
