#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace headwater::cli {

/// Back to the start of the line, and erase it.
inline constexpr std::string_view kClearLine = "\r\x1b[K";

/// A progress line on standard error: only on a terminal, only for work of more than a second, gone when it ends. It never
/// takes more than one line of the terminal, however narrow that is or becomes.
class Progress {
 public:
  /// `total` units of work, >= 1; `work` is the name that the line begins with. With `tokens` the line
  /// shows their rate and the time left instead of pairs.
  explicit Progress(std::uint64_t total, std::string_view work = "attend", std::uint64_t tokens = 0);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// From now on no line is shown.
  static void hide() { hidden_ = true; }

  void advance(std::uint64_t units) { done_.fetch_add(units, std::memory_order_relaxed); }

 private:
  void run();
  void show(double seconds) const;

  inline static bool hidden_ = false;
  std::uint64_t total_;
  std::string work_;
  std::uint64_t tokens_;
  std::atomic<std::uint64_t> done_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool finished_ = false;
  std::thread thread_;  // only on a terminal
};

}  // namespace headwater::cli
