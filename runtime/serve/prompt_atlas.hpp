#pragma once

#include <cstdint>
#include <vector>

#include "headwater/session.hpp"

namespace headwater::runtime {

/// How much of the earlier tokens the chunks of a prompt read, layer by layer, in a grid that is small whatever the prompt is:
/// for a picture of it. A session's observer feeds it.
class PromptAtlas {
 public:
  static constexpr std::int64_t kMostColumns = 128;
  static constexpr std::int64_t kFewestTokens = 16;  ///< of a column

  struct Row {
    std::int64_t begin = 0;  ///< its queries are tokens [begin, end) of the prompt
    std::int64_t end = 0;
    std::vector<float>
        read;  ///< [layer][column] pairs of a query and an earlier token that it reads, by mean of the sets
    std::vector<float> possible;  ///< the same of dense attention
  };

  /// Of a prompt of so many tokens. `windows`: keys that a token of each layer sees, 0: all.
  PromptAtlas(const Shape& shape, std::vector<std::int64_t> windows, std::int64_t tokens);
  void add(const ChunkRecord& record);

  [[nodiscard]] std::int64_t layers() const { return static_cast<std::int64_t>(windows_.size()); }
  [[nodiscard]] std::int64_t columns() const { return (tokens_ + column_ - 1) / column_; }
  [[nodiscard]] std::int64_t column_tokens() const { return column_; }
  /// In ascending order; tokens that came from a cache have none. A row is a chunk, or several that fit into a column.
  [[nodiscard]] const std::vector<Row>& rows() const { return rows_; }
  /// [row][layer][column] read / possible, 255 for 1; 0 where no token is earlier.
  [[nodiscard]] std::vector<std::uint8_t> shares() const;

 private:
  Row& row_of(const Chunk& chunk);

  Shape shape_;
  std::vector<std::int64_t> windows_;
  std::int64_t tokens_;
  std::int64_t column_;
  std::vector<Row> rows_;
};

}  // namespace headwater::runtime
