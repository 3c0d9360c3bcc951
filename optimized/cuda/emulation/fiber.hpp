#pragma once

#include <cstddef>
#include <deque>

namespace headwater::cuda::emulation {

/// Stacks that one host thread switches between in a few nanoseconds. A body never returns: it switches away.
class Fibers {
 public:
  using Body = void (*)(void* argument, int fiber);

  Fibers(Body body, void* argument);
  Fibers(const Fibers&) = delete;
  Fibers& operator=(const Fibers&) = delete;
  ~Fibers();

  /// At least `count` fibers. Throws std::bad_alloc.
  void reserve(int count);
  /// From the host thread's own stack to a fiber; returns when one calls leave().
  void enter(int fiber);
  /// From fiber `from` to fiber `to`.
  void pass(int from, int to);
  /// From fiber `from` to the host thread's own stack.
  void leave(int from);

 private:
  struct Fiber {
    void* stack_pointer = nullptr;
    void* memory = nullptr;      // guard page and stack
    void* fake_stack = nullptr;  // AddressSanitizer's
    void* tsan = nullptr;        // ThreadSanitizer's
    const void* bottom = nullptr;
    std::size_t size = 0;
  };
  static void begin();
  void change(Fiber& from, Fiber& to);
  void prepare(Fiber& fiber, int index);

  Body body_;
  void* argument_;
  Fiber host_;
  std::deque<Fiber> fibers_;  // suspended fibers refer to their own, so none may move
  Fiber* last_ = nullptr;     // the one that was left most recently
  int starting_ = 0;
};

}  // namespace headwater::cuda::emulation
