#include "standard_output.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "failure.hpp"

namespace headwater::cli {

void print_out(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0)
      throw Failure(fmt::format("standard output cannot be written: {}", std::strerror(errno)));
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace headwater::cli
