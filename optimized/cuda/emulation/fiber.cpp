#include "cuda/emulation/fiber.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <exception>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#define HEADWATER_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HEADWATER_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define HEADWATER_TSAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) && !defined(HEADWATER_TSAN)
#define HEADWATER_TSAN 1
#endif

#ifdef HEADWATER_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef HEADWATER_TSAN
#include <sanitizer/tsan_interface.h>
#endif

// Saves what the System V ABI lets a function keep, and goes on where `next` was left. Control words of the floating
// point units are the same in all fibers.
extern "C" void headwater_cuda_change_stack(void** left, void* next);
asm(R"(
.text
.hidden headwater_cuda_change_stack
.globl headwater_cuda_change_stack
.type headwater_cuda_change_stack, @function
headwater_cuda_change_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size headwater_cuda_change_stack, .-headwater_cuda_change_stack
)");

namespace headwater::cuda::emulation {
namespace {

#ifdef HEADWATER_ASAN
constexpr std::size_t kStack = 512 * 1024;  // instrumented frames are several times larger
#else
constexpr std::size_t kStack = 128 * 1024;
#endif
constexpr int kSavedRegisters = 6;
// Tops at one distance would all fall into the same sets of the caches.
constexpr std::size_t kColour = 320;
constexpr std::size_t kColours = 12;

thread_local Fibers* starting = nullptr;

}  // namespace

Fibers::Fibers(Body body, void* argument) : body_(body), argument_(argument) {}

Fibers::~Fibers() {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  for (Fiber& fiber : fibers_) {
#ifdef HEADWATER_ASAN
    // What fibers that never ended had on their stacks would be out of bounds for whoever is given these addresses next.
    if (fiber.memory != nullptr) __asan_unpoison_memory_region(fiber.memory, kStack + page);
#endif
    if (fiber.memory != nullptr) munmap(fiber.memory, kStack + page);
#ifdef HEADWATER_TSAN
    if (fiber.tsan != nullptr) __tsan_destroy_fiber(fiber.tsan);
#endif
  }
}

void Fibers::reserve(int count) {
  const auto old = static_cast<int>(fibers_.size());
  if (count <= old) return;
  fibers_.resize(static_cast<std::size_t>(count));
  for (int index = old; index < count; ++index) {
    try {
      prepare(fibers_[index], index);
    } catch (...) {
      fibers_.resize(static_cast<std::size_t>(index));
      throw;
    }
  }
}

void Fibers::prepare(Fiber& fiber, int index) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* memory = mmap(nullptr, kStack + page, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  mprotect(memory, page, PROT_NONE);
  fiber.memory = memory;
  fiber.bottom = static_cast<std::byte*>(memory) + page;
  fiber.size = kStack;
  std::byte* top = static_cast<std::byte*>(memory) + page + kStack;
  top -= static_cast<std::size_t>(index) % kColours * kColour;
  // As if `begin` had been called: its return address, which nobody returns to, just below a 16-byte boundary.
  auto* words = reinterpret_cast<std::uintptr_t*>(top) - 1;
  words[0] = 0;
  *--words = reinterpret_cast<std::uintptr_t>(&Fibers::begin);
  for (int i = 0; i < kSavedRegisters; ++i) *--words = 0;
  fiber.stack_pointer = words;
#ifdef HEADWATER_TSAN
  fiber.tsan = __tsan_create_fiber(0);
#endif
}

void Fibers::begin() {
  Fibers& self = *starting;
#ifdef HEADWATER_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &self.last_->bottom, &self.last_->size);
#endif
  self.body_(self.argument_, self.starting_);
  std::terminate();
}

void Fibers::change(Fiber& from, Fiber& to) {
  last_ = &from;
#ifdef HEADWATER_ASAN
  __sanitizer_start_switch_fiber(&from.fake_stack, to.bottom, to.size);
#endif
#ifdef HEADWATER_TSAN
  __tsan_switch_to_fiber(to.tsan, 0);
#endif
  headwater_cuda_change_stack(&from.stack_pointer, to.stack_pointer);
#ifdef HEADWATER_ASAN
  __sanitizer_finish_switch_fiber(from.fake_stack, &last_->bottom, &last_->size);
#endif
}

void Fibers::enter(int fiber) {
  starting = this;
  starting_ = fiber;
#ifdef HEADWATER_TSAN
  host_.tsan = __tsan_get_current_fiber();
#endif
  change(host_, fibers_[fiber]);
}

void Fibers::pass(int from, int to) {
  starting_ = to;
  change(fibers_[from], fibers_[to]);
}

void Fibers::leave(int from) { change(fibers_[from], host_); }

}  // namespace headwater::cuda::emulation
