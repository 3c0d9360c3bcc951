#include "progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "interrupt.hpp"

namespace headwater::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kQuiet = std::chrono::seconds(1);            ///< shorter work shows nothing
constexpr auto kInterval = std::chrono::milliseconds(200);  ///< between two updates
constexpr std::size_t kBarWidth = 30;

void write_terminal(std::string_view text) {
  // The line is decoration: a terminal that went away must not end the work.
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0) return;
}

}  // namespace

Progress::Progress(std::uint64_t total, std::string_view work, std::uint64_t tokens)
    : total_(std::max<std::uint64_t>(total, 1)), work_(work), tokens_(tokens) {
  if (::isatty(STDERR_FILENO) == 1) thread_ = std::thread([this] { run(); });
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
  write_terminal(kClearLine);
  set_progress_shown(false);
}

void Progress::show(double seconds) const {
  const double share =
      std::min(1.0, static_cast<double>(done_.load(std::memory_order_relaxed)) / static_cast<double>(total_));
  const auto filled = static_cast<std::size_t>(share * static_cast<double>(kBarWidth));
  std::string rest = fmt::format("of the pairs, {:.0f} s", seconds);
  if (tokens_ > 0 && share > 0) {
    rest = fmt::format("{:.0f} tokens/s, {:.0f} s left", static_cast<double>(tokens_) * share / seconds,
                       seconds * (1.0 - share) / share);
  }
  write_terminal(fmt::format("{}{} [{}{}] {:3.0f} % {}", kClearLine, work_, std::string(filled, '='),
                             std::string(kBarWidth - filled, ' '), 100.0 * share, rest));
}

}  // namespace headwater::cli
