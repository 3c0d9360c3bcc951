#include "companion.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "text.hpp"

namespace headwater::cli {
namespace {

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

std::string find_companion(std::string_view program) {
  const std::string directory = own_directory();
  if (!directory.empty()) {
    std::string sibling = directory + std::string(program);
    if (is_program(sibling)) return sibling;
  }
  const char* const variable = std::getenv("PATH");
  std::string_view path = variable == nullptr ? "" : variable;
  while (!path.empty()) {
    const auto colon = path.find(':');
    const std::string_view entry = path.substr(0, colon);
    std::string candidate = std::string(entry) + "/" + std::string(program);
    // An empty entry would mean the working directory: nobody wants a program from there.
    if (!entry.empty() && is_program(candidate)) return candidate;
    if (colon == std::string_view::npos) break;
    path.remove_prefix(colon + 1);
  }
  return {};
}

ExitCode become_companion(std::string_view program, std::string_view build_option,
                          const std::vector<std::string>& arguments) {
  std::string path = find_companion(program);
  if (path.empty()) {
    throw Failure(
        ExitCode::no_engine,
        fmt::format(
            "{} is not installed; it must stand beside this program or on PATH (it is built where {} is on)",
            program, build_option));
  }
  std::vector<std::string> copies = arguments;
  std::vector<char*> argv{path.data()};
  for (std::string& argument : copies) argv.push_back(argument.data());
  argv.push_back(nullptr);
  ::execv(path.c_str(), argv.data());
  throw Failure(ExitCode::no_engine,
                fmt::format("{} cannot be run: {}", in_quotes(path), std::strerror(errno)));
}

}  // namespace headwater::cli
