#pragma once

#include <cstdint>
#include <vector>

#include "cli/commands/atlas/input.hpp"
#include "headwater/session.hpp"

namespace headwater::cli {

/// Collects which tokens the chunks of a session read, in the chosen layers and all heads: what the atlas shows.
class ModelTrace {
 public:
  /// Listens to `session`, which must be empty, as long as it lives. `layers`: ascending, in range.
  ModelTrace(Session& session, std::vector<std::int64_t> layers);
  ~ModelTrace();
  ModelTrace(const ModelTrace&) = delete;
  ModelTrace& operator=(const ModelTrace&) = delete;

  /// The trace of everything since; facts and tokens are left empty.
  [[nodiscard]] AtlasTrace take() const;

 private:
  /// The sets of all heads for one row of the atlas in one layer, one after the other.
  struct Sets {
    std::int64_t count = 0;
    std::vector<std::int32_t> positions;
    std::vector<float> column_sums;
  };
  void record(const ChunkRecord& record);
  [[nodiscard]] Sets sets_of_row(const ChunkRecord& record, std::int64_t row, std::int64_t rows) const;
  void append_scores(std::int64_t layer, std::vector<float>& scores) const;

  Session& session_;
  std::vector<std::int64_t> layers_;
  std::vector<std::vector<Sets>> sets_;    // [layer][row]
  std::vector<std::int64_t> chunk_start_;  // of the first chosen layer
  std::vector<AtlasTrace::Row> rows_;      // beside it, with rules `blocks` and `sketches`
};

}  // namespace headwater::cli
