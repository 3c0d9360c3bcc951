#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands/attend/input.hpp"
#include "headwater/headwater.hpp"
#include "runtime/support/mapped_file.hpp"

namespace headwater::tests {

/// What the observer said about one chunk of the only layer.
struct RecordedChunk {
  Chunk chunk;
  std::vector<std::vector<std::int32_t>> memory;  ///< [Hq], ascending
  std::vector<std::vector<float>> colsum_inter;   ///< [Hq], beside memory
  std::vector<std::vector<float>> colsum_intra;   ///< [Hq][tokens of the chunk]
};

/// One prefill of rows in BF16 or F32 on one engine, with all of its results.
struct PrefillRun {
  std::unique_ptr<Session> session;
  std::vector<RecordedChunk> chunks;
  std::vector<float> out;  ///< [n, Hq, dv]

  /// Score of a token, widened.
  [[nodiscard]] float score(std::int64_t head, std::int64_t token) const;
};

/// q, k, v of the run as token-major views.
struct Views {
  std::int64_t n = 0;
  Shape shape;
  Rows q, k, v;
};

/// A real trace of models/, kept mapped.
class RealTrace {
 public:
  explicit RealTrace(const std::string& name);
  [[nodiscard]] Views views() const;
  /// The same with every value element 1: outputs are sums of weights then.
  [[nodiscard]] Views views_with_unit_values();

 private:
  runtime::MappedFile file_;
  cli::AttendInput input_;
  std::vector<float> ones_;
};

/// One turn of `calls` calls, all of the same rows; `out` is the last one's.
[[nodiscard]] PrefillRun prefill(const std::string& engine, const Views& views, const Options& options,
                                 std::int64_t calls = 1);

}  // namespace headwater::tests
