#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/run_buffer.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::core {

/// Rows 0, 1, ... of equal size in several runs (one for each layer and head), all filled to about the same length, in pages
/// that are taken as rows come. A page holds all runs for a range of row numbers; its unused part is never touched.
///
/// fork() shares the pages. From then on neither side writes into them: the next rows go to a new page, which begins at
/// the last multiple of kGroup rows, and the rows of that group are copied (docs/adr/0027-pages-and-forks.md).
class PagedRows {
 public:
  /// Pages begin at multiples of this.
  static constexpr std::int64_t kGroup = 256;

  PagedRows() = default;
  /// At most `rows` rows of `row_bytes` bytes in each run; page_rows: those of a page, a multiple of kGroup. `spare_rows`
  /// rows after the last of a run may be read, too; they hold anything. Takes no pages.
  PagedRows(std::int64_t runs, std::int64_t rows, std::int64_t row_bytes, std::int64_t page_rows,
            std::int64_t spare_rows);

  /// Rows [begin, end) are about to be written, all before `begin` are. Takes the pages for them: std::bad_alloc, with
  /// everything as it was.
  void reserve(std::int64_t begin, std::int64_t end);
  /// The same rows of the runs [first, last), that are reserved, are about to be written. Advice only (RunBuffer). Not from
  /// several threads.
  void make_room(std::int64_t first, std::int64_t last, std::int64_t begin, std::int64_t end);
  /// No row is kept.
  void clear();
  /// The first `rows` rows again, sharing their pages.
  [[nodiscard]] PagedRows fork(std::int64_t rows);

  /// A reserved row.
  [[nodiscard]] unsigned char* row(std::int64_t run, std::int64_t index) {
    auto* at = const_cast<unsigned char*>(std::as_const(*this).row(run, index));
    if (HEADWATER_SABOTAGE("core.pages.run_offset_in_32_bits")) {
      const std::int64_t of_run = run * groups_[static_cast<std::size_t>(index / kGroup)].run_bytes;
      at -= of_run - (of_run & 0xFFFFFFFF);
    }
    return at;
  }
  [[nodiscard]] const unsigned char* row(std::int64_t run, std::int64_t index) const {
    const Group& group = groups_[static_cast<std::size_t>(index / kGroup)];
    return group.rows + run * group.run_bytes + index * row_bytes_;
  }
  /// How many of n reserved rows from `index` follow each other without gaps.
  [[nodiscard]] std::int64_t together(std::int64_t index, std::int64_t n) const {
    return std::min(n, groups_[static_cast<std::size_t>(index / kGroup)].end - index);
  }
  [[nodiscard]] std::int64_t row_bytes() const { return row_bytes_; }
  /// Of the pages, those that are shared with others included.
  [[nodiscard]] std::int64_t bytes() const;
  /// Of the pages of all rows, where none were shared. They are added to the memory's count (NUM-5).
  [[nodiscard]] std::int64_t bytes_when_full() const;

 private:
  struct Page {
    Page(std::int64_t runs, std::int64_t begin, std::int64_t count, std::int64_t row_bytes,
         std::int64_t spare)
        : first(begin), rows(count), data(runs, count * row_bytes, spare) {}
    std::int64_t first;
    std::int64_t rows;
    RunBuffer data;
  };
  /// Where the rows of a group lie.
  struct Group {
    unsigned char* rows;     ///< row 0 of run 0, if the page began with it
    std::int64_t run_bytes;  ///< from one run to the next
    std::int64_t end;        ///< the first row that does not follow in this page
  };

  [[nodiscard]] std::shared_ptr<Page> new_page(std::int64_t first) const;
  /// Of a page of so many rows, and of the table of so many groups.
  [[nodiscard]] std::int64_t page_bytes(std::int64_t rows) const;
  [[nodiscard]] static std::int64_t table_bytes(std::int64_t groups);
  void append(const std::shared_ptr<Page>& page);
  /// Rows [first, end) of all runs to the front of a page.
  void copy_rows(std::int64_t first, std::int64_t end, Page& to);
  /// Only the groups of the first `rows` rows.
  void shrink(std::int64_t rows);

  std::int64_t runs_ = 0;
  std::int64_t rows_ = 0;
  std::int64_t row_bytes_ = 0;
  std::int64_t page_rows_ = kGroup;
  std::int64_t spare_bytes_ = 0;
  std::vector<std::shared_ptr<Page>> pages_;  // ascending
  List<Group> groups_;
  std::int64_t shared_groups_ = 0;  // the first groups_, which are not written any more
};

}  // namespace headwater::core
