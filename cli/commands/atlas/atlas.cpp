#include "cli/commands/atlas/atlas.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>

#include "cli/commands/atlas/flags.hpp"
#include "cli/commands/atlas/input.hpp"
#include "cli/commands/atlas/page.hpp"
#include "cli/commands/atlas/picture.hpp"
#include "cli/commands/atlas/png_image.hpp"
#include "cli/commands/atlas/summary.hpp"
#include "cli/support/calls.hpp"
#include "cli/support/interrupt.hpp"
#include "cli/support/json_text.hpp"
#include "cli/support/output_file.hpp"
#include "cli/support/progress.hpp"
#include "runtime/support/mapped_file.hpp"
#ifdef HEADWATER_HAS_RUNTIME
#include "cli/support/model_flags.hpp"
#endif
#include "cli/support/streams.hpp"
#include "cli/support/text.hpp"

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
    const Survival lives = survival(trace, h);
    nlohmann::ordered_json head;
    const std::int64_t number = trace.head_numbers[static_cast<std::size_t>(h)];
    if (trace.heads_in_layer > 0) head["layer"] = number / trace.heads_in_layer;
    head["head"] = trace.heads_in_layer > 0 ? number % trace.heads_in_layer : number;
    head.update({{"pairs", pairs.computed()},
                 {"pairs_own", pairs.own},
                 {"pairs_local", pairs.local},
                 {"pairs_heavy", pairs.heavy},
                 {"pairs_before_dense", pairs.dense},
                 {"survival", lives.share},
                 {"survival_at_risk", lives.at_risk}});
    heads.push_back(std::move(head));
  }
  return heads;
}

std::string report_json(const AtlasTrace& trace, const AtlasOutputs& flags, std::size_t page,
                        std::size_t picture) {
  nlohmann::ordered_json json;
  json["page"] = flags.page;
  json["page_bytes"] = page;
  json["png"] =
      flags.picture.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(flags.picture);
  json["png_bytes"] = picture;
  json["tokens"] = trace.n;
  json[trace.by_query_block() ? "query_blocks" : "chunks"] = trace.chunks();
  json["pairs_dense"] = pairs_of(trace.n, 0);
  json["heads"] = heads_json(trace);
  return json_line(json);
}

std::string report_text(const AtlasTrace& trace, const AtlasOutputs& flags, std::size_t page,
                        std::size_t picture) {
  double pairs = 0;
  for (std::int64_t h = 0; h < trace.heads(); ++h)
    pairs += static_cast<double>(count_pairs(trace, h).computed());
  const double all = static_cast<double>(pairs_of(trace.n, 0)) * static_cast<double>(trace.heads());
  const std::string tokens = count_text(trace.n, "token");
  const std::string chunks = count_text(trace.chunks(), trace.row_name());
  const std::string heads = count_text(trace.heads_in_file, trace.head_kind());
  std::string text = fmt::format("input    {}, {}, {} of {}\n", tokens, chunks, trace.heads(), heads);
  text += fmt::format("pairs    {:.1f} % of dense attention\n", 100.0 * pairs / all);
  text += fmt::format("page     {} ({})\n", one_line(flags.page), bytes_text(page));
  if (!flags.picture.empty())
    text += fmt::format("picture  {} ({})\n", one_line(flags.picture), bytes_text(picture));
  return text;
}

}  // namespace

void write_atlas(const AtlasOutputs& outputs, const runtime::MappedFile& input, const std::string& title,
                 const std::function<AtlasTrace()>& trace) {
  if (outputs.quiet) Progress::hide();
  // Everything that can fail comes before the first rename.
  OutputFile page_file(outputs.page, input);
  std::optional<OutputFile> picture_file;
  if (!outputs.picture.empty()) picture_file.emplace(outputs.picture, input);
  const AtlasTrace content = trace();
  const std::string page = atlas_page(content, title);
  write_whole(page_file, page);
  std::string picture;
  if (picture_file) {
    picture = encode_png(atlas_picture(content, title));
    write_whole(*picture_file, picture);
  }
  // What is written in place can still fail, and comes before what is replaced.
  const bool page_first = page_file.is_stream();
  if (page_first) page_file.commit();
  if (picture_file) picture_file->commit();
  if (!page_first) page_file.commit();
  if (outputs.json) {
    print_out(report_json(content, outputs, page.size(), picture.size()));
  } else if (!outputs.quiet) {
    print_summary(report_text(content, outputs, page.size(), picture.size()), outputs.take_standard_output());
  }
}

ExitCode atlas_command(const std::vector<std::string>& arguments) {
#ifdef HEADWATER_HAS_RUNTIME
  if (asks_for_model(arguments)) return atlas_model_command(arguments);
#endif
  const auto flags = parse_atlas_flags(arguments);
  if (!flags) return ExitCode::done;
  install_signal_handlers(kCommand, flags->input);
  const runtime::MappedFile file(flags->input);
  write_atlas(flags->outputs, file, std::filesystem::path(flags->input).filename().string(),
              [&] { return read_atlas_trace(file, flags->heads); });
  return ExitCode::done;
}

}  // namespace headwater::cli
