#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "cli/commands/commands.hpp"
#include "cli/support/text.hpp"

namespace headwater::cli {
namespace {

constexpr const char* kProgram = "headwater-conformance";

bool is_program(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

std::string own_directory() {
  std::array<char, PATH_MAX> path{};
  const ssize_t length = ::readlink("/proc/self/exe", path.data(), path.size());
  if (length <= 0 || static_cast<std::size_t>(length) == path.size()) return {};
  const std::string_view own(path.data(), static_cast<std::size_t>(length));
  return std::string(own.substr(0, own.rfind('/') + 1));
}

}  // namespace

std::string find_conformance() {
  const std::string directory = own_directory();
  if (!directory.empty()) {
    std::string sibling = directory + kProgram;
    if (is_program(sibling)) return sibling;
  }
  const char* const variable = std::getenv("PATH");
  std::string_view path = variable == nullptr ? "" : variable;
  while (!path.empty()) {
    const auto colon = path.find(':');
    const std::string_view entry = path.substr(0, colon);
    std::string candidate = std::string(entry) + "/" + kProgram;
    // An empty entry would mean the working directory: nobody wants a program from there.
    if (!entry.empty() && is_program(candidate)) return candidate;
    if (colon == std::string_view::npos) break;
    path.remove_prefix(colon + 1);
  }
  return {};
}

ExitCode conform_command(const Arguments& arguments) {
  std::string path = find_conformance();
  if (path.empty()) {
    throw Failure(
        ExitCode::no_engine,
        fmt::format("{} is not installed; it must stand beside this program or on PATH (it is built "
                    "where HEADWATER_TESTS is on)",
                    kProgram));
  }
  Arguments copies = arguments;
  std::vector<char*> argv{path.data()};
  for (std::string& argument : copies) argv.push_back(argument.data());
  argv.push_back(nullptr);
  ::execv(path.c_str(), argv.data());
  throw Failure(ExitCode::no_engine,
                fmt::format("{} cannot be run: {}", in_quotes(path), std::strerror(errno)));
}

}  // namespace headwater::cli
