#include "cli/support/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "cli/support/interrupt.hpp"
#include "cli/support/streams.hpp"

namespace headwater::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kQuiet = std::chrono::seconds(1);            ///< shorter work shows nothing
constexpr auto kInterval = std::chrono::milliseconds(200);  ///< between two updates
constexpr std::size_t kBarWidth = 30;
constexpr std::size_t kLeastBarWidth = 5;

/// As much as fits into `room` columns: the bar shrinks first, then goes; then the rest, then the name of the work.
std::string fitted_line(const std::string& work, double share, const std::string& rest, std::size_t room) {
  const std::string percent = fmt::format("{:3.0f} %", 100.0 * share);
  std::string line = fmt::format("{} [] {} {}", work, percent, rest);
  if (line.size() + kLeastBarWidth <= room) {
    const std::size_t width = std::min(kBarWidth, room - line.size());
    const auto filled = static_cast<std::size_t>(share * static_cast<double>(width));
    return line.insert(work.size() + 2, std::string(filled, '=') + std::string(width - filled, ' '));
  }
  for (const std::string& shorter :
       {fmt::format("{} {} {}", work, percent, rest), fmt::format("{} {}", work, percent)}) {
    if (shorter.size() <= room) return shorter;
  }
  return percent.substr(0, room);
}

}  // namespace

Progress::Progress(std::uint64_t total, std::string_view work, std::uint64_t tokens)
    : total_(std::max<std::uint64_t>(total, 1)), work_(work), tokens_(tokens) {
  if (!hidden_ && ::isatty(STDERR_FILENO) == 1) thread_ = std::thread([this] { run(); });
}

Progress::~Progress() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    finished_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Progress::run() {
  const auto start = Clock::now();
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, kQuiet, [this] { return finished_; })) return;
  set_progress_shown(true);
  do {
    show(std::chrono::duration<double>(Clock::now() - start).count());
  } while (!changed_.wait_for(lock, kInterval, [this] { return finished_; }));
  print_error(kClearLine);
  set_progress_shown(false);
}

void Progress::show(double seconds) const {
  const double share =
      std::min(1.0, static_cast<double>(done_.load(std::memory_order_relaxed)) / static_cast<double>(total_));
  std::string rest = fmt::format("of the pairs, {:.0f} s", seconds);
  if (tokens_ > 0 && share > 0) {
    rest = fmt::format("{:.0f} tokens/s, {:.0f} s left", static_cast<double>(tokens_) * share / seconds,
                       seconds * (1.0 - share) / share);
  }
  // The last column stays free: a character there could move the cursor to the next line.
  draw_progress(fmt::format("{}{}", kClearLine, fitted_line(work_, share, rest, terminal_columns() - 1)));
}

}  // namespace headwater::cli
