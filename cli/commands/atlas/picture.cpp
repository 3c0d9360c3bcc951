#include "cli/commands/atlas/picture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "cli/commands/atlas/assets.hpp"
#include "cli/commands/atlas/canvas.hpp"
#include "cli/commands/atlas/curves.hpp"
#include "cli/commands/atlas/style.hpp"
#include "cli/commands/atlas/summary.hpp"
#include "cli/support/calls.hpp"
#include "cli/support/text.hpp"
#include "headwater/detail/option_table.hpp"

namespace headwater::cli {
namespace {

constexpr std::int64_t kWidth = 1800;
constexpr std::int64_t kMargin = 40;
constexpr std::int64_t kInner = kWidth - 2 * kMargin;
constexpr std::int64_t kColumns = 4;
constexpr std::int64_t kGap = 24;          ///< between panels
constexpr std::int64_t kPanelLabels = 56;  ///< to the left of a panel
constexpr std::int64_t kPanelWidth = (kInner - (kColumns - 1) * kGap) / kColumns - kPanelLabels;
constexpr std::int64_t kScores = 60;  ///< height of the scores below a panel
constexpr double kFaintest = 0.55;    ///< a single token in a pixel of many must still be seen

struct Layout {
  std::int64_t overview_row, overview, panel_row, panel, panels, scores, height;
  std::int64_t overview_top, panels_top, curves_top;
};

constexpr std::int64_t kPanelTitle = 24;
constexpr std::int64_t kPanelFoot = 34;
constexpr std::int64_t kAxisTitle = 24;
constexpr const char* kPosition = "position of the token";

Layout lay_out(const AtlasTrace& trace) {
  Layout at{};
  constexpr std::int64_t kHead = 168, kSection = 64, kFoot = 24, kOverview = 420, kPanelMaps = 150;
  at.overview_row = std::clamp<std::int64_t>(kOverview / trace.heads(), 3, 14);
  at.overview = std::min(at.overview_row * trace.heads(), std::int64_t{4096});
  at.panel_row = std::clamp<std::int64_t>(kPanelMaps / trace.chunks(), 1, 16);
  at.panel = std::min(at.panel_row * trace.chunks(), kPanelMaps);
  at.panels = std::min(trace.heads(), kMostPanels);
  at.scores = trace.by_query_block() ? 0 : 4 + kScores;  // SEL-9: there are none
  const std::int64_t rows = (at.panels + kColumns - 1) / kColumns;
  at.overview_top = kHead + kSection;
  at.panels_top = at.overview_top + at.overview + 24 + kAxisTitle + kSection;
  at.curves_top =
      at.panels_top + rows * (kPanelTitle + at.panel + at.scores + kPanelFoot) + kAxisTitle + kSection;
  at.height = at.curves_top + kFoot + (trace.by_query_block() ? -kSection : kSurvivalHeight);
  return at;
}

std::string score_text(double score) {
  return score >= 1000.0 && score < 1e5 ? fmt::format("{:.0f}", score) : fmt::format("{:.3g}", score);
}

PairCounts sum_over_heads(const AtlasTrace& trace) {
  PairCounts sum;
  for (std::int64_t h = 0; h < trace.heads(); ++h) {
    const PairCounts pairs = count_pairs(trace, h);
    sum.own += pairs.own, sum.local += pairs.local, sum.heavy += pairs.heavy, sum.dense += pairs.dense;
  }
  return sum;
}

class Picture {
 public:
  Picture(const AtlasTrace& trace, const std::string& title)
      : trace_(trace),
        title_(title),
        small_(assets::small_glyphs()),
        large_(assets::large_glyphs()),
        at_(lay_out(trace)),
        pairs_(sum_over_heads(trace)),
        canvas_(kWidth, at_.height, kPaper) {}
  PixelImage draw();

 private:
  void head();
  void pair_bar(double all, std::int64_t y);
  void section(std::int64_t y, const std::string& title, const std::string& note);
  void axis(std::int64_t x, std::int64_t y, std::int64_t width, std::int64_t ticks);
  void overview();
  void panel(std::int64_t head, std::int64_t x, std::int64_t y);
  void chunk_labels(std::int64_t x, std::int64_t y);
  void chunk_row(std::int64_t head, std::int64_t chunk, std::int64_t x, std::int64_t y);
  void marks(std::span<const std::int32_t> positions, std::int64_t x, std::int64_t y, Colour colour);
  [[nodiscard]] std::int64_t chunk_line(std::int64_t chunk) const {
    return chunk * at_.panel / trace_.chunks();
  }
  void scores(std::int64_t head, std::int64_t x, std::int64_t y);
  /// Column of `width` in which a position lies.
  [[nodiscard]] std::int64_t column(std::int64_t position, std::int64_t width) const {
    return position * width / trace_.n;
  }

  const AtlasTrace& trace_;
  const std::string& title_;
  GlyphSheet small_, large_;
  Layout at_;
  PairCounts pairs_;  // of all heads
  Canvas canvas_;
};

/// The pairs of dense attention to scale, and below them what each colour means, if it is there.
void Picture::pair_bar(double all, std::int64_t y) {
  struct Part {
    double count;
    Colour colour;
    std::string text;
  };
  const std::array parts = {
      Part{static_cast<double>(pairs_.own), kOwn, "its own chunk"},
      Part{static_cast<double>(pairs_.local), kLocal, fmt::format("local window (newest {})", trace_.local)},
      Part{static_cast<double>(pairs_.heavy), kHeavy,
           trace_.by_query_block() ? "chosen by the queries" : "heavy hitters"},
      Part{static_cast<double>(pairs_.dense), kDense, "everything before (dense)"},
      Part{all - static_cast<double>(pairs_.computed()), kPanel, "not computed"}};
  double before = 0;
  std::int64_t x = kMargin;
  for (const Part& part : parts) {
    if (part.count <= 0) continue;
    const auto from = std::llround(before / all * kInner);
    before += part.count;
    canvas_.fill(kMargin + from, y, std::llround(before / all * kInner) - from, 20, part.colour);
    const std::string text = fmt::format("{}: {:.1f} %", part.text, 100.0 * part.count / all);
    canvas_.fill(x, y + 32, 16, 16, part.colour);
    canvas_.text(x + 24, y + 30, text, small_, kInk);
    x += 24 + small_.width(text) + 32;
  }
}

void Picture::head() {
  const double all = static_cast<double>(pairs_of(trace_.n, 0)) * static_cast<double>(trace_.heads());
  const double share = 100.0 * static_cast<double>(pairs_.computed()) / all;
  canvas_.text(kMargin, 28,
               fmt::format("Which tokens each {} reads: {:.1f} % of the query-key pairs of dense attention",
                           trace_.row_name(), share),
               large_, kInk);
  const std::string of = trace_.heads() == trace_.heads_in_file ? "" : fmt::format("{} of ", trace_.heads());
  std::string facts = fmt::format("{}: {}, {}, {}{}", one_line(title_, 60), count_text(trace_.n, "token"),
                                  count_text(trace_.chunks(), trace_.row_name()), of,
                                  count_text(trace_.heads_in_file, trace_.head_kind()));
  std::set<std::string> shown{"engine", "chunk", "local", "heavy", "select", "dense_layers"};
  detail::for_each_option(detail::Part::exact, [&](const auto& option) { shown.insert(option.name); });
  for (const auto& [key, value] : trace_.facts) {
    if (shown.contains(key)) facts += fmt::format(", {} {}", key, value);
  }
  canvas_.text(kMargin, 62, facts, small_, kFaint);
  pair_bar(all, 96);
}

void Picture::section(std::int64_t y, const std::string& title, const std::string& note) {
  canvas_.text(kMargin, y, title, large_, kInk);
  canvas_.text(kMargin + large_.width(title) + 16, y + 5, note, small_, kFaint);
}

void Picture::axis(std::int64_t x, std::int64_t y, std::int64_t width, std::int64_t ticks) {
  const std::int64_t step = tick_step(trace_.n, ticks);
  for (std::int64_t t = 0; t <= trace_.n; t += step) {
    draw_tick(canvas_, small_, x + std::min(t * width / trace_.n, width - 1), y, fmt::format("{}", t), x,
              x + width);
  }
}

void Picture::overview() {
  section(at_.overview_top - 44, "Tokens that each head keeps",
          pairs_.heavy > 0
              ? fmt::format("a row is a {}; the darker, the more {}s read the token {}", trace_.head_kind(),
                            trace_.row_name(),
                            trace_.by_query_block() ? "because they chose it" : "as a heavy hitter")
              : fmt::format("no {} read {}", trace_.row_name(),
                            trace_.by_query_block() ? "a chosen token" : "a heavy hitter"));
  const std::int64_t x = kMargin + kLabels;
  const std::int64_t width = kInner - kLabels;
  canvas_.fill(x, at_.overview_top, width, at_.overview, kPanel);
  const std::int64_t every =
      (kLine + at_.overview_row - 1) / at_.overview_row;  // rows between labels that fit
  std::vector<std::int32_t> most(static_cast<std::size_t>(width));
  for (std::int64_t h = 0; h < trace_.heads(); ++h) {
    const std::int64_t y = at_.overview_top + h * at_.overview_row;
    if (trace_.dense_layer(h)) canvas_.fill(x, y, width, at_.overview_row - 1, kDense);
    const auto reads = heavy_reads(trace_, h);
    std::fill(most.begin(), most.end(), 0);
    for (std::int64_t t = 0; t < trace_.n; ++t) {
      auto& bin = most[static_cast<std::size_t>(column(t, width))];
      bin = std::max(bin, reads[static_cast<std::size_t>(t)]);
    }
    const double scale = static_cast<double>(std::max<std::int64_t>(1, trace_.chunks() - 1));
    for (std::int64_t c = 0; c < width; ++c) {
      const std::int32_t count = most[static_cast<std::size_t>(c)];
      const double alpha = 0.15 + 0.85 * std::sqrt(count / scale);
      // Few tokens are wider than a pixel: each fills the columns up to the next.
      if (count == 0) continue;
      canvas_.fill(x + c, y, std::max<std::int64_t>(1, width / trace_.n), at_.overview_row - 1, kHeavy,
                   alpha);
    }
    if (h % every == 0) {
      canvas_.text_right(x - 8, y + at_.overview_row / 2 - 10, trace_.head_name(h), small_, kFaint);
    }
  }
  const std::int64_t bottom = at_.overview_top + at_.overview;
  axis(x, bottom, width, 16);
  canvas_.text_right(x - 8, bottom + kTick, "head", small_, kInk);
  draw_centred(canvas_, small_, x, bottom + 24, width, kPosition);
}

void Picture::marks(std::span<const std::int32_t> positions, std::int64_t x, std::int64_t y, Colour colour) {
  const double tokens = static_cast<double>(trace_.n) / kPanelWidth;  // in a column
  for (std::size_t i = 0; i < positions.size();) {
    const std::int64_t at = column(positions[i], kPanelWidth);
    std::size_t end = i;
    while (end < positions.size() && column(positions[end], kPanelWidth) == at) ++end;
    const double covered = std::min(1.0, static_cast<double>(end - i) / std::max(1.0, tokens));
    const std::int64_t next = std::max(column(positions[i] + 1, kPanelWidth), at + 1);
    canvas_.fill(x + at, y, next - at, std::max<std::int64_t>(1, at_.panel_row - (at_.panel_row > 3 ? 1 : 0)),
                 colour, kFaintest + (1 - kFaintest) * covered);
    i = end;
  }
}

void Picture::chunk_row(std::int64_t head, std::int64_t chunk, std::int64_t x, std::int64_t y) {
  const std::int64_t row = std::max<std::int64_t>(1, at_.panel_row - (at_.panel_row > 3 ? 1 : 0));
  const std::int64_t from = column(trace_.own_begin(chunk), kPanelWidth);
  const std::int64_t to = std::max(column(trace_.end(chunk), kPanelWidth), from + 1);
  if (trace_.dense(chunk, head)) canvas_.fill(x, y, from, row, kDense);
  canvas_.fill(x + from, y, to - from, row, kOwn);
  const auto set = trace_.set(chunk, head);
  const auto heavy = std::lower_bound(set.begin(), set.end(), trace_.local_begin(chunk)) - set.begin();
  marks(set.subspan(static_cast<std::size_t>(heavy)), x, y, kLocal);
  marks(set.first(static_cast<std::size_t>(heavy)), x, y, kHeavy);
}

/// The highest score of each column, logarithmic from the 5th percentile of them, where a line of one pixel stands, to the
/// highest; orange where a chunk read that token as a heavy hitter.
void Picture::scores(std::int64_t head, std::int64_t x, std::int64_t y) {
  const std::span<const float> all(trace_.scores);
  const auto row = all.subspan(static_cast<std::size_t>(head * trace_.n), static_cast<std::size_t>(trace_.n));
  const auto reads = heavy_reads(trace_, head);
  std::vector<std::int64_t> highest(kPanelWidth, -1);  // token of the column
  for (std::int64_t t = 0; t < trace_.n; ++t) {
    auto& token = highest[static_cast<std::size_t>(column(t, kPanelWidth))];
    if (token < 0 || row[static_cast<std::size_t>(t)] > row[static_cast<std::size_t>(token)]) token = t;
  }
  std::vector<double> drawn;
  for (const std::int64_t token : highest) {
    if (token >= 0 && row[static_cast<std::size_t>(token)] > 0)
      drawn.push_back(static_cast<double>(row[static_cast<std::size_t>(token)]));
  }
  canvas_.fill(x, y, kPanelWidth, kScores, kPanel);
  canvas_.text_right(x - 8, y + kLine, "score", small_, kInk);
  if (drawn.empty()) return;
  std::sort(drawn.begin(), drawn.end());
  const double low = drawn[drawn.size() / 20];
  const double high = drawn.back();
  canvas_.text_right(x - 8, y, score_text(high), small_, kFaint);
  if (high > low) canvas_.text_right(x - 8, y + kScores - kLine, score_text(low), small_, kFaint);
  const std::int64_t wide = std::max<std::int64_t>(1, kPanelWidth / trace_.n);
  for (std::int64_t c = 0; c < kPanelWidth; ++c) {
    const std::int64_t token = highest[static_cast<std::size_t>(c)];
    if (token < 0 || row[static_cast<std::size_t>(token)] <= 0) continue;
    const double score = static_cast<double>(row[static_cast<std::size_t>(token)]);
    const double up = high > low ? std::max(0.0, std::log(score / low) / std::log(high / low)) : 1.0;
    const auto height = 1 + std::llround(up * (kScores - 1));
    const bool heavy = reads[static_cast<std::size_t>(token)] > 0;
    canvas_.fill(x + c, y + kScores - height, wide, height, heavy ? kHeavy : kOwn);
  }
}

void Picture::chunk_labels(std::int64_t x, std::int64_t y) {
  const std::int64_t step = tick_step(trace_.chunks(), std::max<std::int64_t>(1, at_.panel / kLine));
  for (std::int64_t c = 0; c < trace_.chunks(); c += step) {
    canvas_.text_right(x - 8, y + chunk_line(c) + at_.panel_row / 2 - kLine / 2, fmt::format("{}", c), small_,
                       kFaint);
  }
}

void Picture::panel(std::int64_t head, std::int64_t x, std::int64_t y) {
  draw_centred(canvas_, small_, x, y, kPanelWidth, fmt::format("head {}", trace_.head_name(head)));
  canvas_.text_right(x - 8, y, trace_.by_query_block() ? "block" : "chunk", small_, kInk);
  y += kPanelTitle;
  canvas_.fill(x, y, kPanelWidth, at_.panel, kPanel);
  std::int64_t before = -1;
  for (std::int64_t c = 0; c < trace_.chunks(); ++c) {
    if (chunk_line(c) != before)
      chunk_row(head, c, x, y + chunk_line(c));  // of many chunks one a line of pixels
    before = chunk_line(c);
  }
  chunk_labels(x, y);
  if (at_.scores > 0) scores(head, x, y + at_.panel + 4);
  axis(x, y + at_.panel + at_.scores, kPanelWidth, 4);
}

PixelImage Picture::draw() {
  head();
  overview();
  const std::string first = at_.panels < trace_.heads() ? fmt::format("first {} heads; ", at_.panels) : "";
  section(at_.panels_top - 44, fmt::format("What each {} reads", trace_.row_name()),
          trace_.by_query_block()
              ? first + "downwards the query blocks: rows that share a set"
              : fmt::format("{}below, the highest score of each column of pixels, logarithmic from their 5th "
                            "percentile{}",
                            first, pairs_.heavy > 0 ? "; orange: read as a heavy hitter" : ""));
  const std::int64_t row_height = kPanelTitle + at_.panel + at_.scores + kPanelFoot;
  constexpr std::int64_t kStep = kPanelLabels + kPanelWidth + kGap;
  for (std::int64_t p = 0; p < at_.panels; ++p) {
    panel(p, kMargin + kPanelLabels + p % kColumns * kStep, at_.panels_top + p / kColumns * row_height);
  }
  const std::int64_t rows = (at_.panels + kColumns - 1) / kColumns;
  draw_centred(canvas_, small_, kMargin + kPanelLabels, at_.panels_top + rows * row_height - 8,
               std::min(at_.panels, kColumns) * kStep - kGap - kPanelLabels, kPosition);
  if (trace_.by_query_block()) return canvas_.image();  // every query block chooses anew: nothing survives
  section(at_.curves_top - 44, "How long tokens survive",
          trace_.positions.empty()
              ? "no chunk read a memory set"
              : "share of tokens that every memory set up to an age held (Kaplan-Meier); "
                "at risk: tokens seen at that age, median of the heads");
  draw_survival(canvas_, small_, trace_, kMargin, at_.curves_top, kInner);
  return canvas_.image();
}

}  // namespace

PixelImage atlas_picture(const AtlasTrace& trace, const std::string& title) {
  return Picture(trace, title).draw();
}

}  // namespace headwater::cli
