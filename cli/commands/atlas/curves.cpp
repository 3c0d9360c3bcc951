#include "cli/commands/atlas/curves.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands/atlas/style.hpp"
#include "cli/commands/atlas/summary.hpp"

namespace headwater::cli {
namespace {

constexpr std::int64_t kNames = 290;  ///< pixels to the right of the plot
constexpr std::int64_t kHeight = 240;
constexpr int kMostDecades = 4;  ///< below 100 %; what is less stands on the lower edge
constexpr std::int64_t kMostTicks = 16;

// Named curves differ in colour (Okabe and Ito, without those that have a meaning here) and in dashes. Each leaves gaps in
// which those before it are seen where they run together.
constexpr std::array kStyles = {LineStyle{kInk, 2.5, 0, 0}, LineStyle{{0, 114, 178}, 2.5, 22, 10},
                                LineStyle{{0, 158, 115}, 2.5, 8, 14}, LineStyle{{204, 121, 167}, 2.5, 3, 9}};

struct NamedCurve {
  std::int64_t head;
  std::string name;
  LineStyle style;
};

/// All curves where they are few; else those of the heads whose tokens live longest, shortest and in the middle, by the
/// mean age that they reach: the sum of the shares.
std::vector<NamedCurve> named_curves(const AtlasTrace& trace, const std::vector<Survival>& lives) {
  std::vector<std::pair<double, std::int64_t>> order;  // mean age, head
  for (std::int64_t h = 0; h < trace.heads(); ++h) {
    const auto& share = lives[static_cast<std::size_t>(h)].share;
    if (!share.empty()) order.emplace_back(std::accumulate(share.begin(), share.end(), 0.0), h);
  }
  std::vector<NamedCurve> named;
  const auto add = [&](std::size_t place, const char* role) {
    const auto [age, head] = order[place];
    named.push_back({head, fmt::format("head {}, {}mean age {:.3g}", trace.head_name(head), role, age),
                     kStyles[named.size()]});
  };
  if (order.size() <= kStyles.size()) {
    for (std::size_t i = 0; i < order.size(); ++i) add(i, "");
    return named;
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  add(order.size() / 2, "median ");
  add(order.size() - 1, "longest ");
  add(0, "shortest ");
  return named;
}

class SurvivalPlot {
 public:
  SurvivalPlot(Canvas& canvas, const GlyphSheet& glyphs, const AtlasTrace& trace, std::int64_t x,
               std::int64_t y, std::int64_t width)
      : canvas_(canvas), glyphs_(glyphs), x_(x + kLabels), y_(y), width_(width - kLabels - kNames) {
    double least = 1.0;
    for (std::int64_t h = 0; h < trace.heads(); ++h) {
      lives_.push_back(survival(trace, h));
      sets_ = std::max(sets_, static_cast<std::int64_t>(lives_.back().share.size()));
      for (const double share : lives_.back().share) {
        if (share > 0.0) least = std::min(least, share);
      }
    }
    decades_ = std::clamp(static_cast<int>(std::ceil(-std::log10(least))), 1, kMostDecades);
    named_ = named_curves(trace, lives_);
  }
  void draw();

 private:
  void shares();
  void ages();
  void names();
  void curve(const Survival& lives, const LineStyle& style);
  [[nodiscard]] double level(double share) const {
    const double down = share > 0.0 ? std::min(1.0, -std::log10(share) / decades_) : 1.0;
    return static_cast<double>(y_) + down * (kHeight - 1);
  }
  [[nodiscard]] std::int64_t column(std::int64_t age) const { return x_ + age * (width_ - 1) / sets_; }
  [[nodiscard]] const Survival& lives(std::int64_t head) const {
    return lives_[static_cast<std::size_t>(head)];
  }

  Canvas& canvas_;
  const GlyphSheet& glyphs_;
  std::int64_t x_, y_, width_;  // of the plot
  std::vector<Survival> lives_;
  std::vector<NamedCurve> named_;
  std::int64_t sets_ = 0;  // of the longest curve
  int decades_ = 1;
};

void SurvivalPlot::shares() {
  for (int decade = 0; decade <= decades_; ++decade) {
    for (const double part : {1.0, 0.5, 0.2}) {
      if (part < 1.0 && (decade == decades_ || decades_ == kMostDecades)) continue;  // no room for more
      const double share = part * std::pow(10.0, -decade);
      const auto y = std::llround(level(share));
      canvas_.fill(x_, y, width_, 1, kDense);
      canvas_.text_right(x_ - 8, y - 10, fmt::format("{:.4g} %", 100.0 * share), glyphs_, kFaint);
    }
  }
}

void SurvivalPlot::curve(const Survival& lives, const LineStyle& style) {
  std::vector<double> heights;
  const auto ages = static_cast<std::int64_t>(lives.share.size());
  double from = level(1.0);  // age 0: its own chunk reads it
  for (std::int64_t k = 0; k < ages; ++k) {
    const double to = level(lives.share[static_cast<std::size_t>(k)]);
    const std::int64_t columns = column(k + 1) - column(k);
    for (std::int64_t c = 0; c < columns; ++c) {
      heights.push_back(from + (to - from) * static_cast<double>(c) / static_cast<double>(columns));
    }
    from = to;
  }
  heights.push_back(from);
  canvas_.curve(x_, heights, style);
}

void SurvivalPlot::names() {
  struct Label {
    double end;
    std::int64_t top;
    const NamedCurve* curve;
  };
  std::vector<Label> labels;
  for (const NamedCurve& curve : named_) {
    const double end = level(lives(curve.head).share.back());
    labels.push_back({end, std::llround(end) - kLine / 2, &curve});
  }
  // Apart from each other, downwards; then, from the lower edge, upwards.
  std::sort(labels.begin(), labels.end(), [](const Label& a, const Label& b) { return a.end < b.end; });
  for (std::size_t i = 1; i < labels.size(); ++i) {
    labels[i].top = std::max(labels[i].top, labels[i - 1].top + kLine);
  }
  std::int64_t below = y_ + kHeight + kLine / 2;
  for (std::size_t i = labels.size(); i-- > 0;) {
    labels[i].top = std::min(labels[i].top, below - kLine);
    below = labels[i].top;
  }
  constexpr std::int64_t kLead = 28;
  for (const Label& label : labels) {
    const std::int64_t from = column(static_cast<std::int64_t>(lives(label.curve->head).share.size()));
    const std::int64_t to = x_ + width_ + kLead;
    std::vector<double> lead;
    const std::int64_t row = label.top + kLine / 2;
    const auto middle = static_cast<double>(row);
    for (std::int64_t c = from; c < to; ++c) {
      lead.push_back(label.end +
                     (middle - label.end) * static_cast<double>(c - from) / static_cast<double>(to - from));
    }
    canvas_.curve(from, lead, {label.curve->style.colour});
    canvas_.text(to + 6, label.top, label.curve->name, glyphs_, kInk);
  }
}

void SurvivalPlot::ages() {
  const std::int64_t step = tick_step(sets_, kMostTicks);
  const std::int64_t bottom = y_ + kHeight;
  canvas_.text_right(x_ - 8, bottom + kTick + kLine, "at risk", glyphs_, kInk);
  std::vector<std::int64_t> at_risk;
  for (std::int64_t age = 0; age <= sets_; age += step) {
    draw_tick(canvas_, glyphs_, column(age), bottom, fmt::format("{}", age), x_, x_ + width_);
    at_risk.clear();
    for (const Survival& lives : lives_) {
      if (age > 0 && age <= static_cast<std::int64_t>(lives.at_risk.size()))
        at_risk.push_back(lives.at_risk[static_cast<std::size_t>(age - 1)]);
    }
    if (at_risk.empty()) continue;
    const auto median = at_risk.begin() + static_cast<std::ptrdiff_t>(at_risk.size() / 2);
    std::nth_element(at_risk.begin(), median, at_risk.end());
    const std::string label = fmt::format("{}", *median);
    const std::int64_t left = column(age) - glyphs_.width(label) / 2;
    canvas_.text(std::min(left, x_ + width_ - glyphs_.width(label)), bottom + kTick + kLine, label, glyphs_,
                 kFaint);
  }
  draw_centred(canvas_, glyphs_, x_, bottom + kTick + 2 * kLine + 4, width_,
               "age of a token: memory sets since its own chunk");
}

void SurvivalPlot::draw() {
  canvas_.fill(x_, y_, width_, kHeight, kPanel);
  if (sets_ == 0) return;
  shares();
  ages();
  for (const Survival& lives : lives_) {
    if (!lives.share.empty() && named_.size() < lives_.size()) curve(lives, {kOwn});
  }
  for (const NamedCurve& named : named_) curve(lives(named.head), named.style);
  names();
}

}  // namespace

void draw_survival(Canvas& canvas, const GlyphSheet& glyphs, const AtlasTrace& trace, std::int64_t x,
                   std::int64_t y, std::int64_t width) {
  SurvivalPlot(canvas, glyphs, trace, x, y, width).draw();
}

}  // namespace headwater::cli
