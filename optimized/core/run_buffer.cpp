#include "core/run_buffer.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "core/buffer.hpp"

namespace headwater::core {

namespace {

constexpr std::int64_t kHugePage = std::int64_t{2} << 20;
/// Stored bytes from which a run takes a huge page: at most as much again is unused.
constexpr std::int64_t kWorthwhile = kHugePage / 2;
/// MADV_COLLAPSE of Linux 6.1: the range moves to huge pages now. glibc names it since 2.37.
constexpr int kCollapse = 25;

/// A collapse ignores the machine's setting of huge pages, so it is read here.
bool machine_uses_huge_pages() {
  const int file = ::open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY | O_CLOEXEC);
  if (file < 0) return true;
  char text[64] = {};
  const ssize_t length = ::read(file, text, sizeof text - 1);
  ::close(file);
  return length <= 0 || std::strstr(text, "[never]") == nullptr;
}

}  // namespace

RunBuffer::RunBuffer(std::int64_t runs, std::int64_t run_bytes, std::int64_t spare)
    : runs_(runs), run_bytes_(run_bytes), memory_(Memory::current()) {
  if (__builtin_add_overflow(checked_product(runs, run_bytes), spare, &size_)) throw std::bad_alloc();
  const bool huge = size_ >= kHugePage && !memory_.of_host() && !memory_.counts();
  alignment_ = huge ? static_cast<std::size_t>(kHugePage) : kAlignment;
  if (huge && machine_uses_huge_pages()) {
    pages_.resize(static_cast<std::size_t>(size_ / kHugePage), Page::untouched);
  }
  data_ = static_cast<unsigned char*>(memory_.take(size_, alignment_));
  // Where the machine's setting is "always", the first byte would take a huge page.
  if (!pages_.empty()) (void)::madvise(data_, pages_.size() * kHugePage, MADV_NOHUGEPAGE);
}

RunBuffer& RunBuffer::operator=(RunBuffer&& other) noexcept {
  std::swap(runs_, other.runs_);
  std::swap(run_bytes_, other.run_bytes_);
  std::swap(size_, other.size_);
  std::swap(alignment_, other.alignment_);
  std::swap(memory_, other.memory_);
  std::swap(data_, other.data_);
  std::swap(pages_, other.pages_);
  return *this;
}

std::int64_t RunBuffer::stored(std::int64_t bytes, std::int64_t length) const {
  const std::int64_t whole = std::min(bytes / run_bytes_, runs_);
  return whole * length + std::min(bytes - whole * run_bytes_, whole < runs_ ? length : 0);
}

void RunBuffer::make_room(std::int64_t first, std::int64_t last, std::int64_t begin, std::int64_t end) {
  if (end <= begin) return;
  const auto pages = static_cast<std::int64_t>(pages_.size());
  // Neighbouring pages share a call.
  std::int64_t from = 0;
  std::int64_t to = 0;
  bool touched = false;
  const auto advise = [&] {
    if (to == from) return;
    unsigned char* range = data_ + from * kHugePage;
    const auto bytes = static_cast<std::size_t>((to - from) * kHugePage);
    (void)::madvise(range, bytes, MADV_HUGEPAGE);
    if (touched) (void)::madvise(range, bytes, kCollapse);
  };
  for (std::int64_t run = first; run < last; ++run) {
    const std::int64_t stop = std::min((run * run_bytes_ + end - 1) / kHugePage + 1, pages);
    for (std::int64_t page = (run * run_bytes_ + begin) / kHugePage; page < stop; ++page) {
      Page& state = pages_[static_cast<std::size_t>(page)];
      if (state == Page::huge) continue;
      if (stored((page + 1) * kHugePage, end) - stored(page * kHugePage, end) < kWorthwhile) {
        state = Page::small;
        continue;
      }
      if (page != to || touched != (state == Page::small)) {
        advise();
        from = page;
        touched = state == Page::small;
      }
      to = page + 1;
      state = Page::huge;
    }
  }
  advise();
}

}  // namespace headwater::core
