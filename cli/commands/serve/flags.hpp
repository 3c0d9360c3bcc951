#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/support/model_flags.hpp"

namespace headwater::cli {

/// What `headwater serve` was asked for.
struct ServeFlags {
  ModelFlags model;
  bool dense = false;
  std::string host = "127.0.0.1";
  int port = 8080;
  int slots = 4;             ///< --parallel
  std::size_t queue = 64;    ///< requests that wait for one
  std::int64_t tokens = -1;  ///< most of an answer; -1: as many as fit
  std::optional<std::int64_t> dense_tail;
  std::optional<std::string> chat_template;
  std::optional<std::string> alias;       ///< the model's name for clients
  std::string api_key;                    ///< empty: none is asked for
  std::optional<std::int64_t> cache_ram;  ///< MiB; else half of what is left beside the weights
  std::string cache_dir;                  ///< empty: nothing is kept in files
  std::int64_t cache_disk = 16384;        ///< MiB
  bool cache_exact = false;
  unsigned connections = 256;
  std::int64_t body = 16;  ///< MiB
  unsigned timeout = 60;   ///< seconds
  unsigned grace = 10;     ///< seconds that requests have after SIGTERM
  bool quiet = false;
};

/// Parses the arguments after `serve`. Nothing if help was asked for. Failure naming the flag, its value and what is
/// allowed otherwise.
[[nodiscard]] std::optional<ServeFlags> parse_serve_flags(const std::vector<std::string>& arguments);

}  // namespace headwater::cli
