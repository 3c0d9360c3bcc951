#include "cuda/dispatch.hpp"

#include "cuda/tuning.hpp"
#include "headwater/error.hpp"

namespace headwater::cuda {

namespace {

[[noreturn]] void missing(const char* what) {
  throw Error(ErrorCode::internal, std::string("the table of kernels has none for ") + what);
}

}  // namespace

Dispatch::Dispatch(Entries entries) : entries_(entries) {
  kernels_.reserve(entries.size());
  for (const KernelEntry& entry : entries) kernels_.push_back(entry.kernel);
}

Choice Dispatch::only(Stage stage) const {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].stage == stage) return {static_cast<int>(i), &entries_[i]};
  }
  missing("a stage");
}

Choice Dispatch::sized(Stage stage, DType unit, std::int64_t d, std::int64_t dv, std::int64_t rows) const {
  Choice best;
  const auto consider = [&](bool sliced) {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const KernelEntry& entry = entries_[i];
      if (entry.stage != stage || entry.unit != unit) continue;
      // Few rows: the fewest of a block; else the most.
      const bool few = entry.rows < kFewRows;
      if (few != (rows <= kFewRows)) continue;
      const bool fits = sliced ? entry.d == kSliceWidth && (entry.dv == 0 || entry.dv == kSliceWidth)
                               : entry.d >= d && entry.dv >= dv;
      if (!fits || (best.entry && entry.d + entry.dv >= best.entry->d + best.entry->dv)) continue;
      best = {static_cast<int>(i), &entry};
    }
  };
  consider(false);
  if (!best.entry) consider(true);
  if (!best.entry) missing("these rows");
  return best;
}

Choice Dispatch::forward(DType unit, std::int64_t d, std::int64_t dv, std::int64_t rows) const {
  return sized(Stage::forward, unit, d, dv, rows);
}

Choice Dispatch::softmax(DType unit, std::int64_t d, std::int64_t dv, std::int64_t rows) const {
  return sized(Stage::softmax, unit, d, dv, rows);
}

Choice Dispatch::column_sums(DType unit, std::int64_t d, std::int64_t keys) const {
  return sized(Stage::column_sums, unit, d, 0, keys);
}

Choice Dispatch::sm90(Stage stage, DType unit, std::int64_t d, std::int64_t dv, bool mapped) const {
  Choice best;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const KernelEntry& entry = entries_[i];
    if (entry.stage != stage || entry.unit != unit || entry.mapped != mapped) continue;
    if (entry.d < d || (entry.dv != 0 && entry.dv < dv)) continue;
    if (best.entry && entry.d + entry.dv >= best.entry->d + best.entry->dv) continue;
    best = {static_cast<int>(i), &entry};
  }
  return best;
}

Choice Dispatch::chosen_forward(DType unit, std::int64_t d, std::int64_t dv, std::int64_t rows) const {
  return sized(Stage::chosen_forward, unit, d, dv, rows);
}

Choice Dispatch::votes(DType unit) const {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].stage == Stage::votes && entries_[i].unit == unit)
      return {static_cast<int>(i), &entries_[i]};
  }
  missing("votes");
}

Choice Dispatch::select(Stage of, std::int64_t candidates) const {
  Choice best;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const KernelEntry& entry = entries_[i];
    if (entry.stage != of) continue;
    // The smallest whose shared memory holds all candidates; beyond all of them, the largest.
    const bool better =
        !best.entry || (best.entry->candidates < candidates
                            ? entry.candidates > best.entry->candidates
                            : entry.candidates >= candidates && entry.candidates < best.entry->candidates);
    if (better) best = {static_cast<int>(i), &entry};
  }
  if (!best.entry) missing("a selection");
  return best;
}

}  // namespace headwater::cuda
