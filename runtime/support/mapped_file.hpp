#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>

namespace headwater::runtime {

/// A regular file mapped for reading: its pages belong to the page cache and cost no memory of the process's own.
class MappedFile {
 public:
  /// Error(invalid_argument) naming the file where it cannot be opened or mapped, or is no regular file or empty.
  explicit MappedFile(std::string path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  [[nodiscard]] dev_t device() const { return device_; }
  [[nodiscard]] ino_t inode() const { return inode_; }

 private:
  std::string path_;
  std::span<const std::byte> bytes_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

/// Says that mapped bytes will not be read soon: the pages wholly inside leave the process's resident set. They come
/// back from the file when they are read again.
void release_pages(std::span<const std::byte> bytes);

}  // namespace headwater::runtime
