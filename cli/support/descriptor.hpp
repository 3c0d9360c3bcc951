#pragma once

#include <unistd.h>

#include <utility>

namespace headwater::cli {

/// Owns a file descriptor; negative is none.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) noexcept : number_(number) {}
  ~Descriptor() { (void)close(); }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    (void)close();
    number_ = std::exchange(other.number_, -1);
    return *this;
  }

  [[nodiscard]] int number() const noexcept { return number_; }
  explicit operator bool() const noexcept { return number_ >= 0; }
  /// What close() returned; 0 where there was nothing to close.
  [[nodiscard]] int close() noexcept { return number_ < 0 ? 0 : ::close(std::exchange(number_, -1)); }

 private:
  int number_;
};

}  // namespace headwater::cli
