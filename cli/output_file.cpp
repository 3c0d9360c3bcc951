#include "output_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <random>

#include "failure.hpp"
#include "interrupt.hpp"
#include "text.hpp"

namespace headwater::cli {
namespace {

constexpr int kMostLinks = 40;      ///< symbolic links in a row, as the kernel allows
constexpr int kMostAttempts = 100;  ///< temporary names, each of 64 random bits

std::string directory_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

/// What the symbolic links at `path` lead to; the last of them may lead to nothing yet.
std::string follow_links(const std::string& path) {
  std::string target = path;
  for (int i = 0; i < kMostLinks; ++i) {
    struct stat status {};
    if (::lstat(target.c_str(), &status) != 0 || !S_ISLNK(status.st_mode)) return target;
    std::array<char, PATH_MAX> link{};
    const ssize_t length = ::readlink(target.c_str(), link.data(), link.size());
    if (length < 0 || static_cast<std::size_t>(length) == link.size()) {
      throw Failure(
          fmt::format("output {}: the symbolic link {} cannot be read", in_quotes(path), in_quotes(target)));
    }
    const std::string to(link.data(), static_cast<std::size_t>(length));
    target = to.starts_with('/') ? to : directory_of(target) + to;
  }
  throw Failure(fmt::format("output {}: more than {} symbolic links in a row", in_quotes(path), kMostLinks));
}

std::string random_name() {
  std::random_device device;
  const auto high = static_cast<std::uint64_t>(device()) << 32;
  return fmt::format(".headwater-{:016x}.tmp", high | device());
}

}  // namespace

OutputFile::OutputFile(const std::string& path, const runtime::MappedFile* input)
    : path_(path), target_(follow_links(path)) {
  if (target_.empty() || target_.ends_with('/')) {
    throw Failure(fmt::format("output {}: is no name of a file", in_quotes(path)));
  }
  struct stat status {};
  if (::stat(target_.c_str(), &status) == 0) {
    if (!S_ISREG(status.st_mode)) {
      throw Failure(fmt::format("output {}: exists and is not a regular file; only those are replaced",
                                in_quotes(path)));
    }
    if (input != nullptr && status.st_dev == input->device() && status.st_ino == input->inode()) {
      throw Failure(fmt::format("output {}: is the input file {}; use another name", in_quotes(path),
                                in_quotes(input->path())));
    }
    if (::faccessat(AT_FDCWD, target_.c_str(), W_OK, AT_EACCESS) != 0) fail("cannot be replaced", errno);
  } else if (errno != ENOENT) {
    fail("cannot be written", errno);
  }
  const std::string directory = directory_of(target_);
  for (int i = 0; i < kMostAttempts && fd_ < 0; ++i) {
    temporary_ = directory + random_name();
    // Known to the signal handlers before it exists: a signal in between then removes a file that is ours anyway.
    place_ = add_temporary_file(temporary_);
    fd_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ >= 0) break;
    const int error = errno;
    forget_temporary_file(place_);
    errno = error;
    if (errno != EEXIST) break;
  }
  if (fd_ < 0) {
    const int error = errno;
    fail(fmt::format("cannot create a file in {}", directory.empty() ? "'.'" : in_quotes(directory)), error);
  }
}

OutputFile::~OutputFile() { discard(); }

void OutputFile::discard() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  if (temporary_.empty()) return;
  ::unlink(temporary_.c_str());
  forget_temporary_file(place_);
  temporary_.clear();
}

void OutputFile::fail(const std::string& action, int error) const {
  throw Failure(fmt::format("output {}: {}: {}", in_quotes(path_), action, std::strerror(error)));
}

void OutputFile::reserve(std::uint64_t bytes) {
  // The kernel's own call: posix_fallocate would write zeros where the file system cannot reserve.
  int result = 0;
  do {
    result = ::fallocate(fd_, 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result == 0 || errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL) return;
  fail(fmt::format("no room for {} ({} bytes)", bytes_text(bytes), bytes), errno);
}

void OutputFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("writing failed", errno);
    if (written == 0) fail("writing failed", ENOSPC);
    offset += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void OutputFile::commit() {
  if (::fsync(fd_) != 0) fail("writing to the disk failed", errno);
  const int closed = ::close(fd_);
  fd_ = -1;
  if (closed != 0) fail("closing failed", errno);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail("cannot be given its name", errno);
  forget_temporary_file(place_);
  temporary_.clear();
}

}  // namespace headwater::cli
