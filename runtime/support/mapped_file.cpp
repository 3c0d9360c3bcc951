#include "runtime/support/mapped_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "headwater/error.hpp"
#include "runtime/support/huge_pages.hpp"
#include "runtime/support/utf8.hpp"

namespace headwater::runtime {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& reason) {
  throw Error(ErrorCode::invalid_argument, fmt::format("{} {}", quoted(path), reason));
}

struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  if (path_.find('\0') != std::string::npos) fail(path_, "is no file name: it contains a zero byte");
  // O_NONBLOCK: opening a FIFO that nobody writes must not hang; it means nothing for a regular file.
  const Descriptor file{::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) fail(path_, fmt::format("cannot be read: {}", std::strerror(errno)));
  struct stat status {};
  if (::fstat(file.fd, &status) != 0)
    fail(path_, fmt::format("cannot be examined: {}", std::strerror(errno)));
  if (!S_ISREG(status.st_mode)) fail(path_, "is not a regular file; only those can be mapped");
  if (status.st_size == 0) fail(path_, "is empty");
  device_ = status.st_dev;
  inode_ = status.st_ino;
  const auto size = static_cast<std::size_t>(status.st_size);
  void* const data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED)
    fail(path_, fmt::format("cannot be mapped ({} bytes): {}", size, std::strerror(errno)));
  bytes_ = {static_cast<const std::byte*>(data), size};
  advise_huge_pages(data, size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      bytes_(std::exchange(other.bytes_, {})),
      device_(other.device_),
      inode_(other.inode_) {}

MappedFile::~MappedFile() {
  if (bytes_.empty()) return;
  ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());  // NOLINT: munmap takes a mutable pointer
}

void release_pages(std::span<const std::byte> bytes) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data());
  const std::uintptr_t skipped = (page - begin % page) % page;
  if (bytes.size() < skipped + page) return;
  const std::size_t length = (bytes.size() - skipped) / page * page;
  // Advice only: where the kernel refuses it, the pages stay resident and nothing else changes.
  (void)::madvise(const_cast<std::byte*>(bytes.data() + skipped), length, MADV_DONTNEED);  // NOLINT
}

}  // namespace headwater::runtime
