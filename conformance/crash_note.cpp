#include "conformance/crash_note.hpp"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstring>

namespace headwater::conformance {
namespace {

constexpr std::size_t kLongest = 500;
// Read from a signal handler: a plain array, no allocation.
char note[kLongest + 1] = {};

void say(const char* text) {
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text, std::strlen(text));
}

void die(int signal) {
  if (note[0] != '\0') {
    say("\nFAIL       crashed; repeat with: ");
    say(note);
    say("\n");
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

void install_crash_note() {
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) std::signal(signal, die);
}

void set_crash_note(const std::string& command) {
  const std::size_t size = std::min(command.size(), kLongest);
  std::memcpy(note, command.data(), size);
  note[size] = '\0';
}

}  // namespace headwater::conformance
