#include "mapped_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>

#include "failure.hpp"
#include "text.hpp"

namespace headwater::cli {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& reason) {
  throw Failure(fmt::format("{} {}", in_quotes(path), reason));
}

struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  // O_NONBLOCK: opening a FIFO that nobody writes must not hang; it means nothing for a regular file.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) fail(path, fmt::format("cannot be read: {}", std::strerror(errno)));
  struct stat status {};
  if (::fstat(file.fd, &status) != 0) fail(path, fmt::format("cannot be examined: {}", std::strerror(errno)));
  if (!S_ISREG(status.st_mode)) fail(path, "is not a regular file; only those can be mapped");
  if (status.st_size == 0) fail(path, "is empty; it must be a safetensors file");
  device_ = status.st_dev;
  inode_ = status.st_ino;
  const auto size = static_cast<std::size_t>(status.st_size);
  void* const data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED)
    fail(path, fmt::format("cannot be mapped ({} bytes): {}", size, std::strerror(errno)));
  bytes_ = {static_cast<const std::byte*>(data), size};
}

MappedFile::~MappedFile() {
  ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());  // NOLINT: munmap takes a mutable pointer
}

void MappedFile::release(std::uint64_t begin, std::uint64_t end) const {
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t first = (begin + page - 1) / page * page;
  const std::uint64_t last = end / page * page;
  if (first >= last) return;
  // Advice only: where the kernel refuses it, the pages stay resident and nothing else changes.
  (void)::madvise(const_cast<std::byte*>(bytes_.data() + first), last - first, MADV_DONTNEED);  // NOLINT
}

}  // namespace headwater::cli
