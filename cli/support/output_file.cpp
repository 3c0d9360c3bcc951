#include "cli/support/output_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string_view>
#include <vector>

#include "cli/support/failure.hpp"
#include "cli/support/interrupt.hpp"
#include "cli/support/streams.hpp"
#include "cli/support/text.hpp"

namespace headwater::cli {
namespace {

constexpr int kMostLinks = 40;      ///< symbolic links in a row, as the kernel allows
constexpr int kMostAttempts = 100;  ///< temporary names, each of 64 random bits
constexpr std::size_t kCopyBytes = std::size_t{1} << 20;
constexpr mode_t kPermissions = S_IRWXU | S_IRWXG | S_IRWXO;

std::string directory_of(const std::string& path) {
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

std::string random_name() {
  std::random_device device;
  const auto high = static_cast<std::uint64_t>(device()) << 32;
  return fmt::format(".headwater-{:016x}.tmp", high | device());
}

/// May a link be followed that ends a path? The rule of the kernel's fs.protected_symlinks, whether that is on or not.
bool may_follow(const struct stat& link, int directory) {
  struct stat around {};
  if (link.st_uid == ::geteuid() || ::fstat(directory, &around) != 0) return link.st_uid == ::geteuid();
  const bool shared = (around.st_mode & S_ISVTX) != 0 && (around.st_mode & S_IWOTH) != 0;
  return !shared || around.st_uid == link.st_uid;
}

std::string temporary_directory() {
  const char* const chosen = std::getenv("TMPDIR");
  return fmt::format("{}/", chosen == nullptr || *chosen == '\0' ? "/tmp" : chosen);
}

}  // namespace

OutputFile::OutputFile(const std::string& path, const runtime::MappedFile* input) : path_(path) {
  find_stream();
  if (to_stream_) {
    directory_name_ = temporary_directory();
    directory_ = Descriptor(::open(directory_name_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!directory_) fail(fmt::format("cannot create a file in {}", in_quotes(directory_name_)), errno);
    create_temporary();
    forget_temporary();  // it needs no name
    return;
  }
  find_place();
  check_target(input);
  create_temporary();
  if (exists_) keep_owner_and_mode();
}

OutputFile::~OutputFile() { forget_temporary(); }

void OutputFile::forget_temporary() noexcept {
  if (temporary_.empty()) return;
  ::unlinkat(directory_.number(), temporary_.c_str(), 0);
  forget_temporary_file(place_);
  temporary_.clear();
}

void OutputFile::fail(const std::string& action, int error) const {
  throw Failure(fmt::format("output {}: {}: {}", in_quotes(path_), action, std::strerror(error)));
}

/// Standard output, or a character device or pipe, which stay what they are.
void OutputFile::find_stream() {
  to_stream_ = path_ == kStandardOutput;
  if (to_stream_) return;
  const Descriptor found(::open(path_.c_str(), O_PATH | O_CLOEXEC));
  struct stat status {};
  if (!found || ::fstat(found.number(), &status) != 0) return;
  if (!S_ISCHR(status.st_mode) && !S_ISFIFO(status.st_mode)) return;
  const std::string same = fmt::format("/proc/self/fd/{}", found.number());
  stream_ = Descriptor(::open(same.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC));
  if (!stream_) fail("cannot be written", errno);
  to_stream_ = true;
}

/// Walks over the symbolic links at the end of `path_`; the last of them may lead to nothing yet. The directory that was
/// reached is held, so that nobody can put another one in its place, and a link itself is held while it is judged.
void OutputFile::find_place() {
  std::string target = path_;
  for (int i = 0; i < kMostLinks; ++i) {
    directory_name_ = directory_of(target);
    name_ = target.substr(directory_name_.size());
    if (name_.empty()) throw Failure(fmt::format("output {}: is no name of a file", in_quotes(path_)));
    const char* const directory = directory_name_.empty() ? "." : directory_name_.c_str();
    directory_ = Descriptor(::open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!directory_) fail("cannot be written", errno);
    const Descriptor link(::openat(directory_.number(), name_.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat status {};
    if (!link || ::fstat(link.number(), &status) != 0 || !S_ISLNK(status.st_mode)) return;
    if (!may_follow(status, directory_.number())) {
      throw Failure(fmt::format(
          "output {}: the symbolic link {} belongs to another user and stands in a directory that "
          "everybody may write to; name the file itself",
          in_quotes(path_), in_quotes(target)));
    }
    std::array<char, PATH_MAX> text{};
    const ssize_t length = ::readlinkat(link.number(), "", text.data(), text.size());
    if (length < 0 || static_cast<std::size_t>(length) == text.size()) {
      throw Failure(
          fmt::format("output {}: the symbolic link {} cannot be read", in_quotes(path_), in_quotes(target)));
    }
    const std::string to(text.data(), static_cast<std::size_t>(length));
    target = to.starts_with('/') ? to : directory_name_ + to;
  }
  throw Failure(fmt::format("output {}: more than {} symbolic links in a row", in_quotes(path_), kMostLinks));
}

void OutputFile::check_target(const runtime::MappedFile* input) {
  struct stat status {};
  if (::fstatat(directory_.number(), name_.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno != ENOENT) fail("cannot be written", errno);
    return;
  }
  if (!S_ISREG(status.st_mode)) {
    throw Failure(
        fmt::format("output {}: exists and is not a regular file, character device or pipe; use another name",
                    in_quotes(path_)));
  }
  if (input != nullptr && status.st_dev == input->device() && status.st_ino == input->inode()) {
    throw Failure(fmt::format("output {}: is the input file {} itself; write to another file",
                              in_quotes(path_), in_quotes(input->path())));
  }
  if (::faccessat(directory_.number(), name_.c_str(), W_OK, AT_EACCESS) != 0)
    fail("cannot be replaced", errno);
  exists_ = true;
  mode_ = status.st_mode & kPermissions;
  owner_ = status.st_uid;
  group_ = status.st_gid;
}

void OutputFile::create_temporary() {
  // What replaces a file is nobody else's until it has that file's owner; what is new gets what the umask leaves.
  const mode_t mode = exists_ || to_stream_ ? S_IRUSR | S_IWUSR : mode_t{0666};
  for (int i = 0; i < kMostAttempts && !file_; ++i) {
    temporary_ = random_name();
    // Known to the signal handlers before it exists: a signal in between then removes a file that is ours anyway.
    place_ = add_temporary_file(directory_name_ + temporary_);
    file_ = Descriptor(
        ::openat(directory_.number(), temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode));
    if (file_) break;
    const int error = errno;
    forget_temporary_file(place_);
    temporary_.clear();
    errno = error;
    if (errno != EEXIST) break;
  }
  if (!file_) {
    fail(fmt::format("cannot create a file in {}",
                     directory_name_.empty() ? "'.'" : in_quotes(directory_name_)),
         errno);
  }
}

void OutputFile::keep_owner_and_mode() {
  mode_t mode = mode_;
  if (::fchown(file_.number(), owner_, group_) != 0 &&
      ::fchown(file_.number(), static_cast<uid_t>(-1), group_) != 0) {
    mode =
        (mode & ~static_cast<mode_t>(S_IRWXG)) | ((mode & S_IRWXO) << 3);  // another group gets what all have
  }
  if (::fchmod(file_.number(), mode) == 0) return;
  const int error = errno;
  forget_temporary();
  fail("cannot be given the permissions of the file that it replaces", error);
}

void OutputFile::reserve(std::uint64_t bytes) {
  // The kernel's own call: posix_fallocate would write zeros where the file system cannot reserve.
  int result = 0;
  do {
    result = ::fallocate(file_.number(), 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result == 0 || errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL) return;
  fail(fmt::format("no room for {} ({} bytes)", bytes_text(bytes), bytes), errno);
}

void OutputFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(file_.number(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("writing failed", errno);
    if (written == 0) fail("writing failed", ENOSPC);
    offset += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void OutputFile::copy_to_stream() {
  std::vector<char> buffer(kCopyBytes);
  for (off_t offset = 0;;) {
    const ssize_t got = ::pread(file_.number(), buffer.data(), buffer.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("cannot be read back", errno);
    if (got == 0) return;
    const std::string_view part(buffer.data(), static_cast<std::size_t>(got));
    if (!stream_) {
      print_out(part);
    } else if (const int error = write_all(stream_.number(), part); error != 0) {
      fail("writing failed", error);
    }
    offset += got;
  }
}

void OutputFile::commit() {
  if (to_stream_) return copy_to_stream();
  if (::fsync(file_.number()) != 0) fail("writing to the disk failed", errno);
  if (file_.close() != 0) fail("closing failed", errno);
  if (::renameat(directory_.number(), temporary_.c_str(), directory_.number(), name_.c_str()) != 0)
    fail("cannot be given its name", errno);
  forget_temporary_file(place_);
  temporary_.clear();
  // The new name lasts only when the directory has reached the disk too; one that may not be read cannot be flushed.
  const Descriptor directory(::openat(directory_.number(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory && ::fsync(directory.number()) != 0 && errno != EINVAL)
    fail("writing to the disk failed", errno);
}

}  // namespace headwater::cli
