#include "conformance/isolation.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <random>

#include <fmt/format.h>

#include "headwater/error.hpp"

namespace headwater::conformance {
namespace {

constexpr std::size_t kMostResult = std::size_t{1} << 20;  // more is no report of a case
constexpr std::size_t kMostOutput = 4096;
// Milliseconds between two looks at the child: while it may still write, and when both pipes have ended.
constexpr int kTick = 20;
constexpr int kShortTick = 1;
constexpr int kNoResult = 113;  // exit status of a child whose work threw

class Pipe {
 public:
  Pipe() {
    if (::pipe2(ends_.data(), O_CLOEXEC) != 0) {
      throw Error(ErrorCode::out_of_memory, fmt::format("no pipe to a child: {}", std::strerror(errno)));
    }
  }
  ~Pipe() {
    close(0);
    close(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  [[nodiscard]] int reader() const { return ends_[0]; }
  [[nodiscard]] int writer() const { return ends_[1]; }
  void close(std::size_t end) {
    if (ends_[end] >= 0) ::close(ends_[end]);
    ends_[end] = -1;
  }
  /// What can be read without waiting goes after `text`; closes the reading end when there will be no more.
  void drain(std::string& text, std::size_t most, bool keep_last) {
    std::array<char, 4096> buffer{};
    while (ends_[0] >= 0) {
      const ssize_t got = ::read(ends_[0], buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) {
        close(0);
        return;
      }
      text.append(buffer.data(), static_cast<std::size_t>(got));
      if (text.size() <= most) continue;
      if (keep_last) {
        text.erase(0, text.size() - most);
        return;  // a child that never stops writing must not keep its parent here
      }
      close(0);  // more than a report is no report
    }
  }

 private:
  std::array<int, 2> ends_{-1, -1};
};

// Delimiters of a result. They tell a whole result from a part of one, and from what a plug-in writes to files that
// it did not open.
struct Frame {
  std::string begin, end;

  static Frame drawn() {
    std::random_device device;
    const std::string key = fmt::format("{:08x}{:08x}{:08x}", device(), device(), device());
    return {"result " + key + "{", "}" + key};
  }
  [[nodiscard]] bool holds(std::string_view text) const {
    return text.size() >= begin.size() + end.size() && text.starts_with(begin) && text.ends_with(end);
  }
  [[nodiscard]] std::string inside(const std::string& text) const {
    return text.substr(begin.size(), text.size() - begin.size() - end.size());
  }
};

void write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

[[noreturn]] void be_the_child(const std::function<std::string()>& work, pid_t parent, const Frame& frame,
                               Pipe& result, Pipe& output) {
  ::setpgid(0, 0);  // so that everything it starts can be killed with it
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(kNoResult);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGINT, SIGTERM}) {
    std::signal(signal, SIG_DFL);
  }
  std::signal(SIGPIPE, SIG_IGN);
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  ::dup2(nothing, STDIN_FILENO);
  ::dup2(output.writer(), STDOUT_FILENO);
  ::dup2(output.writer(), STDERR_FILENO);
  try {
    const std::string text = work();
    std::fflush(nullptr);  // what it printed, as exit handlers do not run
    write_all(result.writer(), frame.begin);
    write_all(result.writer(), text);
    write_all(result.writer(), frame.end);
  } catch (const std::exception& error) {
    write_all(STDERR_FILENO, error.what());
    ::_exit(kNoResult);
  } catch (...) {
    ::_exit(kNoResult);
  }
  // Without destructors and atexit(): what the work left in memory may be wrong.
  ::_exit(0);
}

// Printable text in one line or several; other bytes become '?'.
std::string cleaned(std::string text) {
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n') || byte >= 0x7f) c = '?';
  }
  return text;
}

}  // namespace

std::string ChildEnd::trouble(double time_limit) const {
  switch (how) {
    case How::finished: return {};
    case How::signalled: return fmt::format("crashed: killed by signal {} ({})", number, ::strsignal(number));
    case How::exited: return fmt::format("ended its process with status {} and gave no result", number);
    case How::timed_out: return fmt::format("hangs: no result within {} s (--time-limit)", time_limit);
  }
  return {};
}

ChildEnd run_in_child(const std::function<std::string()>& work, double time_limit) {
  Pipe result;
  Pipe output;
  const Frame frame = Frame::drawn();
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) {
    throw Error(ErrorCode::out_of_memory,
                fmt::format("no process for an isolated case: {}", std::strerror(errno)));
  }
  if (child == 0) be_the_child(work, parent, frame, result, output);
  ::setpgid(child, child);  // in both processes, because either may be first
  result.close(1);
  output.close(1);
  for (const Pipe* pipe : {&result, &output}) ::fcntl(pipe->reader(), F_SETFL, O_NONBLOCK);

  using Clock = std::chrono::steady_clock;
  const auto deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(time_limit));
  ChildEnd end;
  std::string framed;
  bool ended = false;
  while (!ended && Clock::now() < deadline) {
    std::array<pollfd, 2> wait{{{result.reader(), POLLIN, 0}, {output.reader(), POLLIN, 0}}};
    ::poll(wait.data(), wait.size(), result.reader() < 0 && output.reader() < 0 ? kShortTick : kTick);
    result.drain(framed, kMostResult, false);
    output.drain(end.output, kMostOutput, true);
    siginfo_t info{};
    // It stays a zombie, so that its process id remains that of its group.
    const bool looked = ::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
    ended = looked && info.si_pid == child;
  }
  ::kill(-child, SIGKILL);  // the child, or what it left running
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  result.drain(framed, kMostResult, false);
  output.drain(end.output, kMostOutput, true);
  end.output = cleaned(std::move(end.output));

  if (!ended) {
    end.how = ChildEnd::How::timed_out;
  } else if (WIFSIGNALED(status)) {
    end.how = ChildEnd::How::signalled;
    end.number = WTERMSIG(status);
  } else {
    end.number = WEXITSTATUS(status);
    if (end.number == 0 && frame.holds(framed)) {
      end.how = ChildEnd::How::finished;
      end.result = frame.inside(framed);
    }
  }
  return end;
}

}  // namespace headwater::conformance
