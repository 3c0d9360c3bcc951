#pragma once

/// Test hooks, compiled to nothing in what is shipped (HEADWATER_TESTING is set in test builds only).
///
/// HEADWATER_SABOTAGE("stage.fault") is true while the conformance kit, or the environment variable
/// HEADWATER_SABOTAGE of a test program without the kit, has switched that named fault on; only then it counts that the
/// place was reached. HEADWATER_MARK("stage.path") counts that a path ran, so that a test can assert it did. Both take a
/// string literal. A fault that is off costs a load and a branch; neither hook belongs in an innermost loop.
#ifdef HEADWATER_TESTING

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace headwater::testing {

/// A named place; registers itself before main().
class Site {
 public:
  explicit Site(const char* name) noexcept : name_(name), next_(first_) {
    first_ = this;
    const char* wanted = std::getenv("HEADWATER_SABOTAGE");
    if (wanted != nullptr && std::strcmp(wanted, name) == 0) activate(true);
  }
  Site(const Site&) = delete;
  Site& operator=(const Site&) = delete;

  void reach() noexcept { hits_.fetch_add(1, std::memory_order_relaxed); }
  /// Whether the fault is switched on; if so, it was reached.
  bool fault() noexcept {
    const bool on = active_.load(std::memory_order_relaxed);
    if (on) reach();
    return on;
  }
  [[nodiscard]] const char* name() const noexcept { return name_; }
  [[nodiscard]] long hits() const noexcept { return hits_.load(std::memory_order_relaxed); }
  [[nodiscard]] Site* next() const noexcept { return next_; }
  void activate(bool on) noexcept { active_.store(on, std::memory_order_relaxed); }
  void clear() noexcept { hits_.store(0, std::memory_order_relaxed); }

  /// First of all sites that were constructed (a singly linked list).
  static Site* first() noexcept { return first_; }

 private:
  static inline constinit Site* first_ = nullptr;
  const char* name_;
  std::atomic<long> hits_{0};
  std::atomic<bool> active_{false};
  Site* next_ = nullptr;
};

template <std::size_t N>
struct Literal {
  char text[N]{};
  constexpr Literal(const char (&from)[N]) {  // NOLINT: implicit on purpose
    for (std::size_t i = 0; i < N; ++i) text[i] = from[i];
  }
};

/// The site of a literal: one object per text, constructed at static initialisation, so that every site of the
/// program is known before anything ran.
template <Literal Name>
struct Named {
  static inline Site site{Name.text};
  static Site& get() noexcept { return site; }
};

}  // namespace headwater::testing

#define HEADWATER_SABOTAGE(name) (::headwater::testing::Named<name>::get().fault())
#define HEADWATER_MARK(name) (::headwater::testing::Named<name>::get().reach())

#else

#define HEADWATER_SABOTAGE(name) false
#define HEADWATER_MARK(name) ((void)0)

#endif
