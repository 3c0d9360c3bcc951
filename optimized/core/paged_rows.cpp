#include "core/paged_rows.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "core/buffer.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::core {

namespace {

std::int64_t groups_of(std::int64_t rows) { return (rows + PagedRows::kGroup - 1) / PagedRows::kGroup; }

}  // namespace

PagedRows::PagedRows(std::int64_t runs, std::int64_t rows, std::int64_t row_bytes, std::int64_t page_rows,
                     std::int64_t spare_rows)
    : runs_(runs),
      rows_(rows),
      row_bytes_(row_bytes),
      page_rows_(page_rows),
      spare_bytes_(checked_product(spare_rows, row_bytes)) {
  (void)checked_product(runs, rows, row_bytes);
}

std::shared_ptr<PagedRows::Page> PagedRows::new_page(std::int64_t first) const {
  return std::make_shared<Page>(runs_, first, std::min(page_rows_, rows_ - first), row_bytes_, spare_bytes_);
}

void PagedRows::append(const std::shared_ptr<Page>& page) {
  const std::int64_t end = page->first + page->rows;
  pages_.push_back(page);
  for (std::int64_t group = page->first / kGroup; group < groups_of(end); ++group) {
    groups_.push_back({page->data.data() - page->first * row_bytes_, page->rows * row_bytes_, end});
  }
}

void PagedRows::reserve(std::int64_t begin, std::int64_t end) {
  const bool shared = begin / kGroup < shared_groups_;
  const std::int64_t first = shared ? begin / kGroup * kGroup : std::ssize(groups_) * kGroup;
  std::vector<std::shared_ptr<Page>> taken;
  for (std::int64_t at = first; at < end; at += taken.back()->rows) taken.push_back(new_page(at));
  if (taken.empty()) return;
  pages_.reserve(pages_.size() + taken.size());
  groups_.reserve(static_cast<std::size_t>(groups_of(taken.back()->first + taken.back()->rows)));

  // Nothing below can fail.
  if (shared) {
    const std::int64_t lost = HEADWATER_SABOTAGE("core.pages.last_row_of_a_group_lost") ? 1 : 0;
    copy_rows(first, begin - lost, *taken.front());
    shrink(first);
  }
  for (const std::shared_ptr<Page>& page : taken) append(page);
}

void PagedRows::copy_rows(std::int64_t first, std::int64_t end, Page& to) {
  if (end <= first) return;
  const std::int64_t bytes = (end - first) * row_bytes_;
  to.data.make_room(0, runs_, 0, bytes);
  for (std::int64_t run = 0; run < runs_; ++run) {
    if (run >= 64 && HEADWATER_SABOTAGE("core.pages.runs_beyond_64")) break;
    std::memcpy(to.data.data() + run * to.rows * row_bytes_, row(run, first),
                static_cast<std::size_t>(bytes));
  }
}

void PagedRows::shrink(std::int64_t rows) {
  const std::int64_t end = groups_of(rows) * kGroup;
  if (std::ssize(groups_) * kGroup <= end) return;
  groups_.resize(static_cast<std::size_t>(end / kGroup));
  std::erase_if(pages_, [&](const std::shared_ptr<Page>& page) { return page->first >= end; });
  for (auto group = groups_.rbegin(); group != groups_.rend() && group->end > end; ++group) group->end = end;
  shared_groups_ = std::min(shared_groups_, std::ssize(groups_));
}

void PagedRows::make_room(std::int64_t first, std::int64_t last, std::int64_t begin, std::int64_t end) {
  for (const std::shared_ptr<Page>& page : pages_) {
    const std::int64_t from = std::max(begin, page->first);
    const std::int64_t to = std::min(end, page->first + page->rows);
    if (from >= to ||
        groups_[static_cast<std::size_t>(from / kGroup)].rows != page->data.data() - page->first * row_bytes_)
      continue;
    page->data.make_room(first, last, (from - page->first) * row_bytes_, (to - page->first) * row_bytes_);
  }
}

void PagedRows::clear() {
  if (shared_groups_ == 0) return;  // its own pages will hold the next rows
  pages_.clear();
  groups_.clear();
  shared_groups_ = 0;
}

PagedRows PagedRows::fork(std::int64_t rows) {
  PagedRows other = *this;
  other.shrink(rows);
  other.shared_groups_ = std::ssize(other.groups_);
  if (!HEADWATER_SABOTAGE("core.pages.parent_goes_on_writing")) {
    shrink(rows);
    shared_groups_ = std::ssize(groups_);
  }
  return other;
}

std::int64_t PagedRows::page_bytes(std::int64_t rows) const {
  std::int64_t bytes = 0;
  if (__builtin_add_overflow(checked_product(runs_, rows, row_bytes_), spare_bytes_, &bytes)) {
    throw std::bad_alloc();
  }
  return bytes;
}

std::int64_t PagedRows::table_bytes(std::int64_t groups) {
  return checked_product(groups, static_cast<std::int64_t>(sizeof(Group)));
}

std::int64_t PagedRows::bytes() const {
  std::int64_t bytes = table_bytes(static_cast<std::int64_t>(groups_.capacity()));
  for (const std::shared_ptr<Page>& page : pages_) bytes += page_bytes(page->rows);
  return bytes;
}

std::int64_t PagedRows::bytes_when_full() const {
  const Memory& memory = Memory::current();
  const std::int64_t last = HEADWATER_SABOTAGE("core.pages.last_page_not_estimated") ? 0 : rows_ % page_rows_;
  std::int64_t bytes = 0;
  for (const std::int64_t some :
       {checked_product(rows_ / page_rows_, page_bytes(std::min(page_rows_, rows_))),
        last > 0 ? page_bytes(last) : 0, table_bytes(groups_of(rows_))}) {
    memory.count(some);
    if (__builtin_add_overflow(bytes, some, &bytes)) throw std::bad_alloc();
  }
  return bytes;
}

}  // namespace headwater::core
