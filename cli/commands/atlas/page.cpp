#include "cli/commands/atlas/page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "cli/commands/atlas/assets.hpp"
#include "cli/commands/atlas/summary.hpp"
#include "cli/support/failure.hpp"
#include "cli/support/json_text.hpp"
#include "cli/support/text.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cli {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr unsigned kByteBits = 8;

void append_little_endian(Bytes& bytes, std::uint32_t value, int count) {
  for (int i = 0; i < count; ++i) {
    bytes.push_back(static_cast<std::uint8_t>(value & 0xFFU));
    value >>= kByteBits;
  }
}

/// LEB128: seven bits a byte, the lowest first; the top bit says that more follow.
void append_variable(Bytes& bytes, std::uint32_t value) {
  constexpr std::uint32_t kMore = 0x80;
  constexpr unsigned kBits = 7;
  if (HEADWATER_SABOTAGE("atlas.page.gap_in_two_bytes")) value &= 0x3FFF;
  while (value >= kMore) {
    bytes.push_back(static_cast<std::uint8_t>(value | kMore));
    value >>= kBits;
  }
  bytes.push_back(static_cast<std::uint8_t>(value));
}

/// [H][n], BF16 or F32.
Bytes score_bytes(const AtlasTrace& trace) {
  Bytes bytes;
  const int size = trace.narrow_scores ? 2 : 4;
  bytes.reserve(trace.scores.size() * static_cast<std::size_t>(size));
  constexpr unsigned kHalf = 16;
  for (const float score : trace.scores) {
    const auto bits = std::bit_cast<std::uint32_t>(score);
    append_little_endian(bytes, trace.narrow_scores ? bits >> kHalf : bits, size);
  }
  return bytes;
}

/// Set after set [C][H]: the number of entries, then each as the tokens skipped since the one before.
Bytes set_bytes(const AtlasTrace& trace) {
  Bytes bytes;
  for (std::int64_t c = 0; c < trace.chunks(); ++c) {
    for (std::int64_t h = 0; h < trace.heads(); ++h) {
      const auto set = trace.set(c, h);
      append_variable(bytes, static_cast<std::uint32_t>(set.size()));
      std::int32_t before = -1;
      for (const std::int32_t position : set) {
        append_variable(bytes, static_cast<std::uint32_t>(position - before - 1));
        before = position;
      }
    }
  }
  return bytes;
}

/// Beside the entries of the sets: the share of a query's attention that an entry got on average, in steps of an eighth
/// of an octave: 255 is 1, 255 - 8 is 1/2, 0 is none (rule `blocks`, which has no column sums: always).
Bytes weight_bytes(const AtlasTrace& trace) {
  constexpr double kSteps = 8.0;
  constexpr double kOne = 255.0;
  if (trace.by_query_block()) return Bytes(trace.positions.size());
  Bytes bytes;
  bytes.reserve(trace.colsum_inter.size());
  for (std::int64_t c = 0; c < trace.chunks(); ++c) {
    const auto queries = static_cast<double>(trace.end(c) - trace.begin(c));
    const auto first = static_cast<std::size_t>(trace.set_start[static_cast<std::size_t>(c * trace.heads())]);
    const auto last =
        static_cast<std::size_t>(trace.set_start[static_cast<std::size_t>((c + 1) * trace.heads())]);
    for (std::size_t e = first; e < last; ++e) {
      const double share = static_cast<double>(trace.colsum_inter[e]) / queries;
      const double code =
          share > 0.0 ? std::clamp(kOne + std::round(kSteps * std::log2(share)), 1.0, kOne) : 0.0;
      bytes.push_back(static_cast<std::uint8_t>(code));
    }
  }
  return bytes;
}

/// ASCII without "<", which could end a script element, whatever a file or a token is called.
std::string script_json(const nlohmann::ordered_json& json) {
  std::string text;
  for (const char c : json.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace)) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

std::string meta_json(const AtlasTrace& trace, const std::string& title) {
  nlohmann::ordered_json json;
  json["title"] = title;
  json["tokens"] = trace.n;
  json["memory"] = trace.memory;
  json["local"] = trace.local;
  json["score_type"] = trace.narrow_scores ? "BF16" : "F32";
  json["heads_in_file"] = trace.heads_in_file;
  json["heads_in_layer"] = trace.heads_in_layer;
  json["heads"] = trace.head_numbers;
  json["chunk_start"] = trace.chunk_start;
  if (trace.by_query_block()) {
    auto& rows = json["rows"] = nlohmann::ordered_json::object();
    for (const AtlasTrace::Row& row : trace.rows) {
      rows["own"].push_back(row.chunk_begin);
      rows["local"].push_back(row.local_begin);
      rows["dense"].push_back(row.dense);
    }
  }
  if (!trace.dense_heads.empty()) json["dense_heads"] = trace.dense_heads;
  auto& facts = json["facts"] = nlohmann::ordered_json::object();
  for (const auto& [key, value] : trace.facts) facts[key] = value;
  return script_json(json);
}

std::string data_element(std::string_view id, const std::string& text) {
  return fmt::format("<script type=\"text/plain\" id=\"data-{}\">{}</script>\n", id, text);
}

void require_page_size(std::uint64_t bytes, const AtlasTrace& trace) {
  if (bytes <= kMostPageBytes) return;
  throw Failure(fmt::format("the page of {} heads would take {}; allowed are {}: choose heads with --head",
                            trace.heads(), bytes_text(bytes), bytes_text(kMostPageBytes)));
}

/// The template with each `<!--NAME-->` replaced once, from front to back.
std::string filled(std::string_view page,
                   const std::vector<std::pair<std::string_view, std::string>>& replacements) {
  std::string result;
  for (const auto& [name, text] : replacements) {
    const auto at = page.find(name);
    if (at == std::string_view::npos) throw Failure(fmt::format("internal error: the page has no {}", name));
    result += page.substr(0, at);
    result += text;
    page.remove_prefix(at + name.size());
  }
  return result += page;
}

}  // namespace

std::string atlas_page(const AtlasTrace& trace, const std::string& title) {
  const std::uint64_t score_size = trace.narrow_scores ? 2 : 4;
  // What base64 makes of the scores, and of two bytes an entry at least: known before anything is encoded.
  require_page_size((trace.scores.size() * score_size + 2 * trace.positions.size()) / 3 * 4, trace);
  const auto json_element = [](std::string_view id, const std::string& text) {
    return fmt::format("<script type=\"application/json\" id=\"data-{}\">{}</script>\n", id, text);
  };
  const std::string data =
      json_element("meta", meta_json(trace, title)) + json_element("tokens", script_json(trace.tokens)) +
      data_element("scores", base64(score_bytes(trace))) + data_element("sets", base64(set_bytes(trace))) +
      data_element("weights", base64(weight_bytes(trace)));
  std::string page = filled(assets::page(), {{"<!--STYLE-->", std::string(assets::style())},
                                             {"<!--DATA-->", data},
                                             {"<!--SCRIPT-->", std::string(assets::script())}});
  require_page_size(page.size(), trace);
  return page;
}

}  // namespace headwater::cli
