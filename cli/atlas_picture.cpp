#include "atlas_picture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "atlas_assets.hpp"
#include "atlas_summary.hpp"
#include "calls.hpp"
#include "canvas.hpp"
#include "text.hpp"

namespace headwater::cli {
namespace {

// Local and heavy: Okabe and Ito, "Color Universal Design", 2008. They also differ in lightness.
constexpr Colour kPaper{255, 255, 255}, kInk{32, 33, 36}, kFaint{110, 114, 120}, kPanel{243, 244, 246};
constexpr Colour kOwn{176, 180, 186}, kLocal{86, 180, 233}, kHeavy{213, 94, 0}, kDense{214, 217, 222};

constexpr std::int64_t kWidth = 1800;
constexpr std::int64_t kMargin = 40;
constexpr std::int64_t kLabels = 62;  ///< to the left of the overview and of the curves
constexpr std::int64_t kInner = kWidth - 2 * kMargin;
constexpr std::int64_t kColumns = 4;
constexpr std::int64_t kGap = 36;  ///< between panels
constexpr std::int64_t kPanelWidth = (kInner - (kColumns - 1) * kGap) / kColumns;
constexpr std::int64_t kScores = 44;  ///< height of the scores below a panel
constexpr std::int64_t kCurves = 220;
constexpr int kCurveDecades = 3;    ///< from 100 % down: what survives for long is a per cent or less
constexpr double kFaintest = 0.55;  ///< a single token in a pixel of many must still be seen

struct Layout {
  std::int64_t overview_row, overview, panel_row, panel, panels, height;
  std::int64_t overview_top, panels_top, curves_top;
};

constexpr std::int64_t kPanelTitle = 24;
constexpr std::int64_t kPanelFoot = 34;

Layout lay_out(const AtlasTrace& trace) {
  Layout at{};
  constexpr std::int64_t kHead = 168, kSection = 64, kFoot = 78, kOverview = 420, kPanelMaps = 150;
  at.overview_row = std::clamp<std::int64_t>(kOverview / trace.heads(), 3, 14);
  at.overview = std::min(at.overview_row * trace.heads(), std::int64_t{4096});
  at.panel_row = std::clamp<std::int64_t>(kPanelMaps / trace.chunks(), 1, 16);
  at.panel = std::min(at.panel_row * trace.chunks(), kPanelMaps);
  at.panels = std::min(trace.heads(), kMostPanels);
  const std::int64_t rows = (at.panels + kColumns - 1) / kColumns;
  at.overview_top = kHead + kSection;
  at.panels_top = at.overview_top + at.overview + 24 + kSection;
  at.curves_top = at.panels_top + rows * (kPanelTitle + at.panel + 4 + kScores + kPanelFoot) + kSection;
  at.height = at.curves_top + kCurves + kFoot;
  return at;
}

class Picture {
 public:
  Picture(const AtlasTrace& trace, const std::string& title)
      : trace_(trace),
        title_(title),
        small_(assets::small_glyphs()),
        large_(assets::large_glyphs()),
        at_(lay_out(trace)),
        canvas_(kWidth, at_.height, kPaper) {}
  PixelImage draw();

 private:
  void head();
  void legend(std::int64_t y);
  void pair_bar(const PairCounts& pairs, double all, std::int64_t y);
  void section(std::int64_t y, const std::string& title, const std::string& note);
  void axis(std::int64_t x, std::int64_t y, std::int64_t width, std::int64_t ticks);
  void overview();
  void panel(std::int64_t head, std::int64_t x, std::int64_t y);
  void chunk_row(std::int64_t head, std::int64_t chunk, std::int64_t x, std::int64_t y);
  void marks(std::span<const std::int32_t> positions, std::int64_t x, std::int64_t y, Colour colour);
  void scores(std::int64_t head, std::int64_t x, std::int64_t y);
  void curves();
  [[nodiscard]] double percent(const PairCounts& pairs) const {
    return 100.0 * static_cast<double>(pairs.computed()) / static_cast<double>(pairs_of(trace_.n, 0));
  }
  /// Column of `width` in which a position lies.
  [[nodiscard]] std::int64_t column(std::int64_t position, std::int64_t width) const {
    return position * width / trace_.n;
  }

  const AtlasTrace& trace_;
  const std::string& title_;
  GlyphSheet small_, large_;
  Layout at_;
  Canvas canvas_;
};

PairCounts sum_over_heads(const AtlasTrace& trace) {
  PairCounts sum;
  for (std::int64_t h = 0; h < trace.heads(); ++h) {
    const PairCounts pairs = count_pairs(trace, h);
    sum.own += pairs.own, sum.local += pairs.local, sum.heavy += pairs.heavy, sum.dense += pairs.dense;
  }
  return sum;
}

void Picture::legend(std::int64_t y) {
  struct Entry {
    Colour colour;
    std::string text;
  };
  const std::array entries = {Entry{kOwn, "its own chunk"},
                              Entry{kLocal, fmt::format("local window (newest {})", trace_.local)},
                              Entry{kHeavy, "heavy hitters"}, Entry{kDense, "dense: everything before"},
                              Entry{kPanel, "not computed"}};
  std::int64_t x = kMargin;
  for (const Entry& entry : entries) {
    canvas_.fill(x, y + 2, 16, 16, entry.colour);
    canvas_.text(x + 24, y, entry.text, small_, kInk);
    x += 24 + small_.width(entry.text) + 32;
  }
}

void Picture::pair_bar(const PairCounts& pairs, double all, std::int64_t y) {
  canvas_.fill(kMargin, y, kInner, 20, kPanel);
  double before = 0;
  const auto part = [&](std::uint64_t count, Colour colour) {
    const auto from = std::llround(before / all * kInner);
    before += static_cast<double>(count);
    canvas_.fill(kMargin + from, y, std::llround(before / all * kInner) - from, 20, colour);
  };
  part(pairs.own, kOwn);
  part(pairs.local, kLocal);
  part(pairs.heavy, kHeavy);
  part(pairs.dense, kDense);
}

void Picture::head() {
  const PairCounts pairs = sum_over_heads(trace_);
  const double all = static_cast<double>(pairs_of(trace_.n, 0)) * static_cast<double>(trace_.heads());
  const double share = 100.0 * static_cast<double>(pairs.computed()) / all;
  canvas_.text(
      kMargin, 28,
      fmt::format("Which tokens each chunk reads: {:.1f} % of the query-key pairs of dense attention", share),
      large_, kInk);
  std::string facts = fmt::format("{}: {} tokens, {} chunks, {} of {} query heads", one_line(title_, 60),
                                  trace_.n, trace_.chunks(), trace_.heads(), trace_.heads_in_file);
  for (const auto& [key, value] : trace_.facts) {
    if (key == "engine" || key == "chunk" || key == "local" || key == "heavy") {
      facts += fmt::format(", {} {}", key, value);
    }
  }
  canvas_.text(kMargin, 62, facts, small_, kFaint);
  pair_bar(pairs, all, 96);
  legend(126);
}

void Picture::section(std::int64_t y, const std::string& title, const std::string& note) {
  canvas_.text(kMargin, y, title, large_, kInk);
  canvas_.text(kMargin + large_.width(title) + 16, y + 5, note, small_, kFaint);
}

/// Tokens between ticks: a power of two, as chunks are.
std::int64_t tick_step(std::int64_t n, std::int64_t ticks) {
  std::int64_t step = 1;
  while (n / step > ticks) step *= 2;
  return step;
}

void Picture::axis(std::int64_t x, std::int64_t y, std::int64_t width, std::int64_t ticks) {
  const std::int64_t step = tick_step(trace_.n, ticks);
  for (std::int64_t t = 0; t <= trace_.n; t += step) {
    const std::int64_t at = x + std::min(t * width / trace_.n, width - 1);
    canvas_.fill(at, y, 1, 4, kFaint);
    const std::string label = fmt::format("{}", t);
    const std::int64_t half = small_.width(label) / 2;
    canvas_.text(std::clamp(at - half, x, x + width - 2 * half), y + 4, label, small_, kFaint);
  }
}

void Picture::overview() {
  section(at_.overview_top - 44, "Tokens that every head keeps",
          "a row is a query head; the darker, the more chunks read the token as a heavy hitter");
  const std::int64_t x = kMargin + kLabels;
  const std::int64_t width = kInner - kLabels;
  canvas_.fill(x, at_.overview_top, width, at_.overview, kPanel);
  const std::int64_t every = (20 + at_.overview_row - 1) / at_.overview_row;  // rows between labels that fit
  std::vector<std::int32_t> most(static_cast<std::size_t>(width));
  for (std::int64_t h = 0; h < trace_.heads(); ++h) {
    const std::int64_t y = at_.overview_top + h * at_.overview_row;
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
      if (count > 0)
        canvas_.fill(x + c, y, std::max<std::int64_t>(1, width / trace_.n), at_.overview_row - 1, kHeavy,
                     alpha);
    }
    if (h % every == 0) {
      canvas_.text_right(x - 8, y + at_.overview_row / 2 - 10, trace_.head_name(h), small_, kFaint);
    }
  }
  axis(x, at_.overview_top + at_.overview, width, 16);
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
  const std::int64_t from = column(trace_.begin(chunk), kPanelWidth);
  const std::int64_t to = std::max(column(trace_.end(chunk), kPanelWidth), from + 1);
  if (trace_.dense(chunk, head)) canvas_.fill(x, y, from, row, kDense);
  canvas_.fill(x + from, y, to - from, row, kOwn);
  const auto set = trace_.set(chunk, head);
  const auto heavy = std::lower_bound(set.begin(), set.end(), trace_.local_begin(chunk)) - set.begin();
  marks(set.subspan(static_cast<std::size_t>(heavy)), x, y, kLocal);
  marks(set.first(static_cast<std::size_t>(heavy)), x, y, kHeavy);
}

/// The highest score of each column, logarithmic between the smallest and the largest score above zero.
void Picture::scores(std::int64_t head, std::int64_t x, std::int64_t y) {
  const std::span<const float> all(trace_.scores);
  const auto row = all.subspan(static_cast<std::size_t>(head * trace_.n), static_cast<std::size_t>(trace_.n));
  std::vector<float> most(kPanelWidth);
  for (std::int64_t t = 0; t < trace_.n; ++t) {
    auto& bin = most[static_cast<std::size_t>(column(t, kPanelWidth))];
    bin = std::max(bin, row[static_cast<std::size_t>(t)]);
  }
  const float largest = *std::max_element(row.begin(), row.end());
  canvas_.fill(x, y, kPanelWidth, kScores, kPanel);
  if (largest <= 0) return;
  constexpr double kDecades = 5.0;
  const std::int64_t step = std::max<std::int64_t>(1, kPanelWidth / trace_.n);
  for (std::int64_t c = 0; c < kPanelWidth; ++c) {
    const float score = most[static_cast<std::size_t>(c)];
    if (score <= 0) continue;
    const double up = 1.0 + std::log10(static_cast<double>(score / largest)) / kDecades;
    const auto height = std::llround(std::clamp(up, 0.0, 1.0) * kScores);
    canvas_.fill(x + c, y + kScores - height, step, height, kFaint, 0.75);
  }
}

void Picture::panel(std::int64_t head, std::int64_t x, std::int64_t y) {
  const std::span<const float> all(trace_.scores);
  const auto row = all.subspan(static_cast<std::size_t>(head * trace_.n), static_cast<std::size_t>(trace_.n));
  canvas_.text(x, y, fmt::format("head {}", trace_.head_name(head)), small_, kInk);
  canvas_.text_right(
      x + kPanelWidth, y,
      fmt::format("{:.1f} % of pairs, highest score {:.4g}", percent(count_pairs(trace_, head)),
                  *std::max_element(row.begin(), row.end())),
      small_, kFaint);
  y += kPanelTitle;
  canvas_.fill(x, y, kPanelWidth, at_.panel, kPanel);
  std::int64_t before = -1;
  for (std::int64_t c = 0; c < trace_.chunks(); ++c) {
    const std::int64_t at = c * at_.panel / trace_.chunks();
    if (at != before) chunk_row(head, c, x, y + at);  // of many chunks one a line of pixels
    before = at;
  }
  scores(head, x, y + at_.panel + 4);
  axis(x, y + at_.panel + 4 + kScores, kPanelWidth, 4);
}

void Picture::curves() {
  section(
      at_.curves_top - 40, "How long tokens survive",
      "share of the tokens that the k-th memory set behind their chunk still holds; a line is a query head");
  const std::int64_t x = kMargin + kLabels;
  const std::int64_t width = kInner - kLabels;
  canvas_.fill(x, at_.curves_top, width, kCurves, kPanel);
  for (int decade = 0; decade <= kCurveDecades; ++decade) {
    const std::int64_t y = at_.curves_top + decade * (kCurves - 1) / kCurveDecades;
    canvas_.fill(x, y, width, 1, kDense);
    canvas_.text_right(x - 8, y - 10, fmt::format("{:.4g} %", std::pow(10.0, 2 - decade)), small_, kFaint);
  }
  std::size_t longest = 0;
  std::vector<double> heights;
  for (std::int64_t h = 0; h < trace_.heads(); ++h) {
    const auto shares = survival(trace_, h);
    longest = std::max(longest, shares.size());
    if (shares.empty()) continue;
    heights.clear();
    for (std::int64_t c = 0; c < width; ++c) {
      const double k =
          static_cast<double>(c) / static_cast<double>(width - 1) * static_cast<double>(shares.size());
      // From k = 0, the chunk itself, where everything is read.
      const auto below = std::min(static_cast<std::size_t>(k), shares.size() - 1);
      const double left = below == 0 ? 1.0 : shares[below - 1];
      const double share = left + (shares[below] - left) * (k - static_cast<double>(below));
      const double down = share > 0.0 ? std::min(1.0, -std::log10(share) / kCurveDecades) : 1.0;
      heights.push_back(static_cast<double>(at_.curves_top) + down * (kCurves - 1));
    }
    canvas_.curve(x, heights, kHeavy, 0.75);
  }
  const auto sets = static_cast<std::int64_t>(longest);
  if (sets == 0) {
    canvas_.text(x + 12, at_.curves_top + 12, "no chunk read a memory set", small_, kFaint);
    return;
  }
  const std::int64_t step = tick_step(sets, 16);
  for (std::int64_t k = 0; k <= sets; k += step) {
    const std::string label = fmt::format("{}", k);
    const std::int64_t at = x + k * (width - 1) / sets;
    canvas_.fill(at, at_.curves_top + kCurves, 1, 4, kFaint);
    canvas_.text(std::min(at - small_.width(label) / 2, x + width - small_.width(label)),
                 at_.curves_top + kCurves + 4, label, small_, kFaint);
  }
}

PixelImage Picture::draw() {
  head();
  overview();
  section(
      at_.panels_top - 44, "What each chunk reads",
      fmt::format("{}a row is a chunk, downwards; below, the score of each token (logarithmic, 5 decades)",
                  at_.panels < trace_.heads() ? fmt::format("first {} heads; ", at_.panels) : ""));
  const std::int64_t row_height = kPanelTitle + at_.panel + 4 + kScores + kPanelFoot;
  for (std::int64_t p = 0; p < at_.panels; ++p) {
    panel(p, kMargin + p % kColumns * (kPanelWidth + kGap), at_.panels_top + p / kColumns * row_height);
  }
  curves();
  return canvas_.image();
}

}  // namespace

PixelImage atlas_picture(const AtlasTrace& trace, const std::string& title) {
  return Picture(trace, title).draw();
}

}  // namespace headwater::cli
