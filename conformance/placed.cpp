#include "conformance/placed.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include <fmt/format.h>

#include "conformance/case.hpp"
#include "conformance/formats.hpp"

namespace headwater::conformance {
namespace {

// Every byte of poison. As F32, F16 or BF16 it is a NaN with a payload that no conversion of SCORE-4 or NUM-1
// writes, so it is told from a computed NaN.
constexpr std::byte kPoison{0xff};
constexpr std::size_t kCanary = 192;  // bytes before and after: more than the widest vector
constexpr std::int64_t kRowGap = 5;   // elements between rows, odd on purpose
constexpr std::int64_t kHeadGap = 3;

}  // namespace

Placed::Placed(Placement placement, const Tensor& from, std::int64_t first, std::int64_t n)
    : type_(from.type), n_(n), heads_(from.heads), width_(from.width) {
  allocate(placement);
  for (std::int64_t t = 0; t < n; ++t) {
    for (std::int64_t h = 0; h < heads_; ++h) {
      const float* row = from.row(first + t, h);
      for (std::int64_t x = 0; x < width_; ++x) store_element(type_, row[x], block_ + offset(t, h, x));
    }
  }
  image_.assign(block_, block_ + block_size_);
}

Placed::Placed(Placement placement, DType type, std::int64_t n, std::int64_t heads, std::int64_t width)
    : type_(type), n_(n), heads_(heads), width_(width) {
  allocate(placement);
  image_.assign(block_, block_ + block_size_);
  writable_.assign(block_size_, 0);
  for (std::int64_t t = 0; t < n; ++t) {
    for (std::int64_t h = 0; h < heads_; ++h) {
      std::memset(writable_.data() + offset(t, h, 0), 1,
                  static_cast<std::size_t>(width_) * dtype_size(type_));
    }
  }
}

Placed::~Placed() {
  if (mapped_ > 0) {
    ::munmap(block_, mapped_);
  } else {
    ::operator delete(block_);
  }
}

void Placed::allocate(Placement placement) {
  const std::size_t size = dtype_size(type_);
  if (placement == Placement::head_major) {
    row_stride_ = width_;
    head_stride_ = n_ * width_;
  } else if (placement == Placement::strided) {
    head_stride_ = width_ + kHeadGap;
    row_stride_ = heads_ * head_stride_ + kRowGap;
  } else {
    head_stride_ = width_;
    row_stride_ = heads_ * width_;
  }
  const std::size_t extent =
      static_cast<std::size_t>((n_ - 1) * row_stride_ + (heads_ - 1) * head_stride_ + width_) * size;
  if (placement == Placement::guarded) {
    const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
    block_size_ = (kCanary + extent + page - 1) / page * page;
    mapped_ = block_size_ + page;
    void* memory = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    block_ = static_cast<std::byte*>(memory);
    if (::mprotect(block_ + block_size_, page, PROT_NONE) != 0) throw std::bad_alloc();
    origin_ = block_size_ - extent;
  } else {
    block_size_ = kCanary + extent + kCanary;
    // One byte more in front of unaligned rows: operator new aligns block_.
    const std::size_t shift = placement == Placement::unaligned ? 1 : 0;
    block_size_ += shift;
    block_ = static_cast<std::byte*>(::operator new(block_size_));
    origin_ = kCanary + shift;
  }
  std::memset(block_, static_cast<int>(kPoison), block_size_);
}

std::size_t Placed::offset(std::int64_t t, std::int64_t h, std::int64_t x) const {
  return origin_ + static_cast<std::size_t>(t * row_stride_ + h * head_stride_ + x) * dtype_size(type_);
}

Rows Placed::rows() const { return {block_ + origin_, type_, row_stride_, head_stride_}; }

MutableRows Placed::mutable_rows() { return {block_ + origin_, type_, row_stride_, head_stride_}; }

void Placed::check(const char* what) const {
  // All bytes at once: nearly always all is well.
  if (writable_.empty()) {
    if (std::memcmp(block_, image_.data(), block_size_) == 0) return;
  } else {
    std::byte changed{};
    for (std::size_t i = 0; i < block_size_; ++i) {
      changed |= writable_[i] != 0 ? std::byte{} : block_[i] ^ image_[i];
    }
    if (changed == std::byte{}) return;
  }
  for (std::size_t i = 0; i < block_size_; ++i) {
    if (!writable_.empty() && writable_[i] != 0) continue;
    if (block_[i] != image_[i]) {
      throw Violation(
          fmt::format("{}: byte {} of its block was written (rows begin at byte {}, {} bytes in all)", what,
                      i, origin_, block_size_));
    }
  }
}

std::vector<float> Placed::take() const {
  std::vector<float> values(static_cast<std::size_t>(n_ * heads_ * width_));
  std::size_t at = 0;
  for (std::int64_t t = 0; t < n_; ++t) {
    for (std::int64_t h = 0; h < heads_; ++h) {
      for (std::int64_t x = 0; x < width_; ++x) {
        const std::byte* from = block_ + offset(t, h, x);
        bool poison = true;
        for (std::size_t b = 0; b < dtype_size(type_); ++b) poison = poison && from[b] == kPoison;
        if (poison)
          throw Violation(fmt::format("out: token {} head {} element {} was never written", t, h, x));
        values[at++] = load_element(type_, from);
      }
    }
  }
  return values;
}

}  // namespace headwater::conformance
