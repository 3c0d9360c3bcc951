#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "core/memory.hpp"

namespace headwater::core {

/// Memory of equal runs, one after the other, that are filled from their fronts and all to about the same length:
/// rows of a KV store, scores. From the memory that is current where it is made; not initialised.
///
/// Resident memory follows what is stored: runs lie on small pages until half of a huge page is stored, then on that huge
/// page (docs/adr/0021-huge-pages.md). What the host gives lies on the host's pages.
class RunBuffer {
 public:
  RunBuffer() = default;
  /// `spare` bytes follow the last run.
  RunBuffer(std::int64_t runs, std::int64_t run_bytes, std::int64_t spare);
  RunBuffer(RunBuffer&& other) noexcept { *this = std::move(other); }
  RunBuffer& operator=(RunBuffer&& other) noexcept;
  RunBuffer(const RunBuffer&) = delete;
  RunBuffer& operator=(const RunBuffer&) = delete;
  ~RunBuffer() { memory_.give_back(data_, size_, alignment_); }

  /// Bytes [begin, end) of the runs [first, last) are about to be written; all runs are going to hold `end` bytes. Advice
  /// only: takes no memory, and no failure matters.
  void make_room(std::int64_t first, std::int64_t last, std::int64_t begin, std::int64_t end);

  [[nodiscard]] unsigned char* data() { return data_; }
  [[nodiscard]] const unsigned char* data() const { return data_; }
  /// Of the runs.
  [[nodiscard]] std::int64_t bytes() const { return runs_ * run_bytes_; }

 private:
  enum class Page : std::uint8_t { untouched, small, huge };

  /// Bytes stored in the first `bytes` bytes of the buffer once every run holds `length` bytes.
  [[nodiscard]] std::int64_t stored(std::int64_t bytes, std::int64_t length) const;

  std::int64_t runs_ = 0;
  std::int64_t run_bytes_ = 0;
  std::int64_t size_ = 0;  // of the runs and what follows them
  std::size_t alignment_ = kAlignment;
  Memory memory_;
  unsigned char* data_ = nullptr;
  std::vector<Page>
      pages_;  // what whole huge pages of the buffer are used as; empty where the machine has none
};

}  // namespace headwater::core
