#include "cli/support/interrupt.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <string_view>

#include "cli/support/failure.hpp"
#include "cli/support/progress.hpp"
#include "cli/support/streams.hpp"
#include "cli/support/text.hpp"

namespace headwater::cli {
namespace {

// A handler may run on any thread at any time: it sees only what stands in these, and calls only functions that
// POSIX lists as async-signal-safe.
struct TemporaryFile {
  std::array<char, PATH_MAX> path{};
  std::atomic<bool> exists{false};
};
std::array<TemporaryFile, kMostTemporaryFiles> temporary_files{};
std::array<char, kLineLimit + 1> truncated_line{};
std::atomic<bool> progress_shown{false};
std::atomic<bool> progress_being_drawn{false};
std::atomic<bool> ending{false};
std::atomic<bool> stop_asked{false};
int stop_pipe[2] = {-1, -1};  // holds a byte while an end is asked for
static_assert(std::atomic<bool>::is_always_lock_free);

void write_error(std::string_view text) {
  // A failure to write to standard error can be told to nobody.
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0) return;
}

void clean_up() {
  for (const TemporaryFile& file : temporary_files) {
    if (file.exists.load(std::memory_order_acquire)) ::unlink(file.path.data());
  }
  // Waits for a thread that draws the line now, which would draw it after it was cleared; 100 ms at most, since the terminal
  // may take nothing, or the handler may have interrupted that thread.
  ending.store(true);
  constexpr int kMostWaits = 100;
  for (int i = 0; progress_being_drawn.load() && i < kMostWaits; ++i) ::poll(nullptr, 0, 1);
  if (progress_shown.load(std::memory_order_relaxed)) write_error(kClearLine);
}

extern "C" void end_by_signal(int number) {
  clean_up();
  ::_exit(number == SIGINT ? kInterrupted : 128 + number);
}

extern "C" void ask_to_stop(int number) {
  if (stop_asked.exchange(true)) end_by_signal(number);
  // Whoever waits for input wakes up, also where the request comes just before the wait.
  const int error = errno;
  if (::write(stop_pipe[1], "", 1) < 0) errno = error;
}

extern "C" void end_by_truncation(int) {
  clean_up();
  write_error({truncated_line.data(), std::strlen(truncated_line.data())});
  ::_exit(static_cast<int>(ExitCode::bad_input));
}

void handle(int number, void (*action)(int)) {
  struct sigaction handler {};
  handler.sa_handler = action;
  ::sigemptyset(&handler.sa_mask);
  if (::sigaction(number, &handler, nullptr) != 0) {
    throw Failure(fmt::format("cannot handle signal {}: {}", number, std::strerror(errno)));
  }
}

}  // namespace

void install_signal_handlers(const std::string& command, const std::string& input) {
  const std::string line =
      one_line(
          fmt::format("{}: {} could not be read to its end: it was truncated or its disk failed meanwhile",
                      command, in_quotes(input)),
          kLineLimit - 4) +
      "\n";
  std::copy(line.begin(), line.end(), truncated_line.begin());
  handle(SIGINT, end_by_signal);
  handle(SIGTERM, end_by_signal);
  struct sigaction before {};
  if (::sigaction(SIGHUP, nullptr, &before) == 0 && before.sa_handler != SIG_IGN)
    handle(SIGHUP, end_by_signal);
  handle(SIGBUS, end_by_truncation);
}

int add_temporary_file(const std::string& path) {
  if (path.size() >= PATH_MAX) {
    throw Failure(fmt::format("output path {} is longer than the {} bytes that the system allows",
                              in_quotes(path), PATH_MAX - 1));
  }
  for (int place = 0; place < kMostTemporaryFiles; ++place) {
    TemporaryFile& file = temporary_files[static_cast<std::size_t>(place)];
    if (file.exists.load(std::memory_order_relaxed)) continue;
    std::copy(path.begin(), path.end(), file.path.begin());
    file.path[path.size()] = '\0';
    file.exists.store(true, std::memory_order_release);
    return place;
  }
  throw Failure(fmt::format("internal error: more than {} temporary files", kMostTemporaryFiles));
}

void forget_temporary_file(int place) noexcept {
  if (place >= 0)
    temporary_files[static_cast<std::size_t>(place)].exists.store(false, std::memory_order_release);
}

void install_stop_request() {
  if (stop_pipe[0] < 0 && ::pipe2(stop_pipe, O_CLOEXEC | O_NONBLOCK) != 0) {
    throw Failure(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  }
  handle(SIGINT, ask_to_stop);
}

bool stop_requested() { return stop_asked.load(std::memory_order_relaxed); }

void clear_stop_request() {
  char byte = 0;
  while (::read(stop_pipe[0], &byte, 1) > 0) {
  }
  stop_asked.store(false, std::memory_order_relaxed);
}

bool wait_for_input(int descriptor) {
  std::array<pollfd, 2> ready = {pollfd{descriptor, POLLIN, 0}, pollfd{stop_pipe[0], POLLIN, 0}};
  while (!stop_requested()) {
    const int count = ::poll(ready.data(), ready.size(), -1);
    if (count < 0 && errno != EINTR && errno != EAGAIN) return true;  // reading says what is wrong
    if (count > 0 && ready[1].revents == 0) return true;
  }
  return false;
}

bool progress_line_shown() { return progress_shown.load(std::memory_order_relaxed); }
void draw_progress(std::string_view line) {
  progress_being_drawn.store(true);
  if (!ending.load()) print_error(line);
  progress_being_drawn.store(false);
}
void set_progress_shown(bool shown) { progress_shown.store(shown, std::memory_order_relaxed); }

}  // namespace headwater::cli
