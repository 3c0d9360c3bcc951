#include "conformance/allocation_counter.hpp"

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HEADWATER_FOREIGN_MALLOC
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HEADWATER_FOREIGN_MALLOC
#endif
#endif

#ifdef HEADWATER_FOREIGN_MALLOC

namespace headwater::conformance {
AllocationWatch::AllocationWatch(std::int64_t) {}
AllocationWatch::~AllocationWatch() = default;
std::int64_t AllocationWatch::count() const { return 0; }
std::int64_t AllocationWatch::live() const { return 0; }
std::int64_t AllocationWatch::bytes() const { return 0; }
bool AllocationWatch::refused() const { return false; }
bool AllocationWatch::available() { return false; }
AllocationPause::AllocationPause(bool paused) : before_(paused) {}
AllocationPause::~AllocationPause() = default;
}  // namespace headwater::conformance

#else

#include <link.h>

namespace headwater::conformance {
namespace {

std::atomic<bool> watching{false};
std::atomic<std::int64_t> seen{0};
std::atomic<std::int64_t> given_back{0};
std::atomic<std::int64_t> asked{0};
std::atomic<std::int64_t> fail_after{-1};
std::atomic<bool> has_refused{false};
constinit thread_local bool pausing = false;

// Code of the OpenMP runtime: [first, last). Found once, before anything is watched.
struct Range {
  std::uintptr_t first = 0;
  std::uintptr_t last = 0;
};
Range openmp_runtime;

int find_openmp(dl_phdr_info* info, std::size_t, void*) {
  if (info->dlpi_name == nullptr) return 0;
  if (std::strstr(info->dlpi_name, "libgomp") == nullptr && std::strstr(info->dlpi_name, "libomp") == nullptr)
    return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_X) == 0) continue;
    openmp_runtime.first = info->dlpi_addr + segment.p_vaddr;
    openmp_runtime.last = openmp_runtime.first + segment.p_memsz;
  }
  return 0;
}

// Whether a call is counted.
bool counts(void* caller) {
  if (!watching.load(std::memory_order_relaxed) || pausing) return false;
  const auto address = reinterpret_cast<std::uintptr_t>(caller);
  return address < openmp_runtime.first || address >= openmp_runtime.last;
}

// Whether this allocation of `size` bytes is to be refused.
bool refuse(void* caller, std::size_t size) {
  if (!counts(caller)) return false;
  seen.fetch_add(1, std::memory_order_relaxed);
  asked.fetch_add(static_cast<std::int64_t>(size), std::memory_order_relaxed);
  if (fail_after.load(std::memory_order_relaxed) < 0) return false;
  if (fail_after.fetch_sub(1, std::memory_order_relaxed) != 0) return false;
  has_refused.store(true, std::memory_order_relaxed);
  given_back.fetch_add(1, std::memory_order_relaxed);  // never taken
  errno = ENOMEM;
  return true;
}

void note_release(void* caller, const void* memory) {
  if (memory != nullptr && counts(caller)) given_back.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

AllocationWatch::AllocationWatch(std::int64_t fail_at) {
  static const int searched = dl_iterate_phdr(find_openmp, nullptr);
  (void)searched;
  seen = 0;
  given_back = 0;
  asked = 0;
  fail_after = fail_at;
  has_refused = false;
  watching = true;
}

AllocationWatch::~AllocationWatch() {
  watching = false;
  fail_after = -1;
}

std::int64_t AllocationWatch::count() const { return seen.load(); }
std::int64_t AllocationWatch::live() const { return seen.load() - given_back.load(); }
std::int64_t AllocationWatch::bytes() const { return asked.load(); }
bool AllocationWatch::refused() const { return has_refused.load(); }
bool AllocationWatch::available() { return true; }

AllocationPause::AllocationPause(bool paused) : before_(pausing) { pausing = paused; }
AllocationPause::~AllocationPause() { pausing = before_; }

}  // namespace headwater::conformance

// glibc's own entry points, under the names that it keeps for replacements of malloc.
extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* memory, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);
void __libc_free(void* memory);

#define HEADWATER_REPLACEMENT __attribute__((visibility("default"), noinline))

HEADWATER_REPLACEMENT void* malloc(std::size_t size) {
  return headwater::conformance::refuse(__builtin_return_address(0), size) ? nullptr : __libc_malloc(size);
}
HEADWATER_REPLACEMENT void* calloc(std::size_t count, std::size_t size) {
  return headwater::conformance::refuse(__builtin_return_address(0), count * size)
             ? nullptr
             : __libc_calloc(count, size);
}
HEADWATER_REPLACEMENT void* realloc(void* memory, std::size_t size) {
  if (headwater::conformance::refuse(__builtin_return_address(0), size)) return nullptr;
  void* taken = __libc_realloc(memory, size);
  if (taken != nullptr || size == 0)
    headwater::conformance::note_release(__builtin_return_address(0), memory);
  return taken;
}
HEADWATER_REPLACEMENT void free(void* memory) {
  headwater::conformance::note_release(__builtin_return_address(0), memory);
  __libc_free(memory);
}
HEADWATER_REPLACEMENT void* memalign(std::size_t alignment, std::size_t size) {
  return headwater::conformance::refuse(__builtin_return_address(0), size) ? nullptr
                                                                           : __libc_memalign(alignment, size);
}
HEADWATER_REPLACEMENT void* aligned_alloc(std::size_t alignment, std::size_t size) {
  return headwater::conformance::refuse(__builtin_return_address(0), size) ? nullptr
                                                                           : __libc_memalign(alignment, size);
}
HEADWATER_REPLACEMENT int posix_memalign(void** memory, std::size_t alignment, std::size_t size) {
  void* taken = headwater::conformance::refuse(__builtin_return_address(0), size)
                    ? nullptr
                    : __libc_memalign(alignment, size);
  if (taken == nullptr) return ENOMEM;
  *memory = taken;
  return 0;
}
}

#endif
