#include "atlas.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>

#include "atlas_flags.hpp"
#include "atlas_input.hpp"
#include "atlas_page.hpp"
#include "atlas_picture.hpp"
#include "atlas_summary.hpp"
#include "calls.hpp"
#include "interrupt.hpp"
#include "json_text.hpp"
#include "mapped_file.hpp"
#include "output_file.hpp"
#include "png_image.hpp"
#include "standard_output.hpp"
#include "text.hpp"

namespace headwater::cli {
namespace {

constexpr const char* kCommand = "headwater atlas";

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span<const char>(text));
}

void write_whole(OutputFile& file, const std::string& content) {
  file.reserve(content.size());
  file.write_at(0, bytes_of(content));
}

nlohmann::ordered_json heads_json(const AtlasTrace& trace) {
  auto heads = nlohmann::ordered_json::array();
  for (std::int64_t h = 0; h < trace.heads(); ++h) {
    const PairCounts pairs = count_pairs(trace, h);
    heads.push_back({{"head", trace.head_numbers[static_cast<std::size_t>(h)]},
                     {"pairs", pairs.computed()},
                     {"pairs_own", pairs.own},
                     {"pairs_local", pairs.local},
                     {"pairs_heavy", pairs.heavy},
                     {"pairs_before_dense", pairs.dense},
                     {"survival", survival(trace, h)}});
  }
  return heads;
}

std::string report_json(const AtlasTrace& trace, const AtlasFlags& flags, std::size_t page,
                        std::size_t picture) {
  nlohmann::ordered_json json;
  json["page"] = flags.page;
  json["page_bytes"] = page;
  json["png"] =
      flags.picture.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(flags.picture);
  json["png_bytes"] = picture;
  json["tokens"] = trace.n;
  json["chunks"] = trace.chunks();
  json["pairs_dense"] = pairs_of(trace.n, 0);
  json["heads"] = heads_json(trace);
  return json_line(json);
}

std::string report_text(const AtlasTrace& trace, const AtlasFlags& flags, std::size_t page,
                        std::size_t picture) {
  double pairs = 0;
  for (std::int64_t h = 0; h < trace.heads(); ++h)
    pairs += static_cast<double>(count_pairs(trace, h).computed());
  const double all = static_cast<double>(pairs_of(trace.n, 0)) * static_cast<double>(trace.heads());
  std::string text = fmt::format("input    {} tokens, {} chunks, {} of {} query heads\n", trace.n,
                                 trace.chunks(), trace.heads(), trace.heads_in_file);
  text += fmt::format("pairs    {:.1f} % of dense attention\n", 100.0 * pairs / all);
  text += fmt::format("page     {} ({})\n", one_line(flags.page), bytes_text(page));
  if (!flags.picture.empty())
    text += fmt::format("picture  {} ({})\n", one_line(flags.picture), bytes_text(picture));
  return text;
}

}  // namespace

ExitCode atlas_command(const std::vector<std::string>& arguments) {
  const auto flags = parse_atlas_flags(arguments);
  if (!flags) return ExitCode::done;
  install_signal_handlers(kCommand, flags->input);
  const MappedFile file(flags->input);
  const AtlasTrace trace = read_atlas_trace(file, flags->heads);
  const std::string title = std::filesystem::path(flags->input).filename().string();

  // Everything that can fail comes before the first rename.
  OutputFile page_file(flags->page, file);
  std::optional<OutputFile> picture_file;
  if (!flags->picture.empty()) picture_file.emplace(flags->picture, file);
  const std::string page = atlas_page(trace, title);
  write_whole(page_file, page);
  std::string picture;
  if (picture_file) {
    picture = encode_png(atlas_picture(trace, title));
    write_whole(*picture_file, picture);
    picture_file->commit();
  }
  page_file.commit();
  print_out(flags->json ? report_json(trace, *flags, page.size(), picture.size())
                        : report_text(trace, *flags, page.size(), picture.size()));
  return ExitCode::done;
}

}  // namespace headwater::cli
