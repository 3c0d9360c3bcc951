#include "conformance/text_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>

#include <fmt/format.h>

#include "headwater/error.hpp"

namespace headwater::conformance {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& what, const char* allowed) {
  throw Error(ErrorCode::invalid_argument, fmt::format("{}: {}; allowed: {}", path, what, allowed));
}

class OpenFile {
 public:
  explicit OpenFile(const std::string& path)
      : number_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~OpenFile() {
    if (number_ >= 0) ::close(number_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  [[nodiscard]] int number() const { return number_; }

 private:
  int number_;
};

std::string temporary_of(const std::string& path) { return path + ".tmp"; }

[[noreturn]] void refuse_to_write(const std::string& path) {
  refuse(path, "cannot be written", "a file in a writable folder");
}

}  // namespace

std::string read_text(const std::string& path, std::size_t most) {
  // Without a stream, which reports a lack of memory as a file that cannot be read.
  const OpenFile file(path);
  struct stat status {};
  // A pipe or a device may never end.
  if (file.number() < 0 || ::fstat(file.number(), &status) != 0) {
    refuse(path, std::strerror(errno), "a file that can be read");
  }
  if (!S_ISREG(status.st_mode)) refuse(path, "not a regular file", "a file that can be read");
  if (static_cast<std::size_t>(status.st_size) > most) {
    refuse(path, fmt::format("{} bytes", status.st_size), fmt::format("at most {} bytes", most).c_str());
  }
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  for (std::size_t have = 0; have < text.size();) {
    const ssize_t got = ::read(file.number(), text.data() + have, text.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) refuse(path, "cannot be read to its end", "a file that nobody changes meanwhile");
    have += static_cast<std::size_t>(got);
  }
  return text;
}

void write_text(const std::string& path, const std::string& text) {
  if (path == "-") {
    std::cout << text;  // finish() of main.cpp sees whether it could be written
    return;
  }
  const std::string temporary = temporary_of(path);
  std::ofstream file(temporary, std::ios::binary);
  file << text;
  file.close();
  if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) {
    std::remove(temporary.c_str());
    refuse_to_write(path);
  }
}

void require_writable(const std::string& path) {
  if (path == "-") return;
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) refuse_to_write(path);
  const std::string temporary = temporary_of(path);
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) refuse_to_write(path);
  ::close(file);
  ::unlink(temporary.c_str());
}

void make_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) == 0) return;
  const int error = errno;
  struct stat status {};
  if (error == EEXIST && ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) return;
  refuse(path, error == EEXIST ? "is no folder" : std::strerror(error), "a folder, or a name for a new one");
}

}  // namespace headwater::conformance
