#include "cli/support/streams.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "cli/support/failure.hpp"
#include "cli/support/text.hpp"

namespace headwater::cli {
namespace {

bool muted = false;

}  // namespace

int write_all(int descriptor, std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {  // another process made the terminal or pipe that we share non-blocking
      pollfd ready{descriptor, POLLOUT, 0};
      ::poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

void prepare_streams() noexcept {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // A new descriptor is the lowest that is free. O_PATH needs no permission, and reading or writing fails with EBADF.
    if (::fcntl(descriptor, F_GETFD) < 0 && ::open("/", O_PATH) < 0) return;
  }
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

void mute_streams() noexcept { muted = true; }

void print_out(std::string_view text) {
  if (muted) return;
  const int error = write_all(STDOUT_FILENO, text);
  if (error == EPIPE) throw ReaderGone{};
  if (error != 0) throw Failure(fmt::format("standard output cannot be written: {}", std::strerror(error)));
}

void print_summary(std::string_view text, bool output_taken) {
  if (output_taken) {
    print_error(text);
  } else {
    print_out(text);
  }
}

bool reader_gone() noexcept {
  pollfd state{STDOUT_FILENO, POLLOUT, 0};
  return ::poll(&state, 1, 0) > 0 && (state.revents & (POLLERR | POLLHUP)) != 0;
}

void print_error(std::string_view text) noexcept {
  if (!muted) (void)write_all(STDERR_FILENO, text);
}

std::size_t terminal_columns() noexcept {
  constexpr std::size_t kUsual = 80;
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsual;
}

void warn(std::string_view warning) { print_error(fmt::format("warning: {}\n", one_line(warning))); }

void warn(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) warn(warning);
}

}  // namespace headwater::cli
