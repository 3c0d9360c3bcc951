#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace headwater::runtime {

/// A regular file mapped for reading: its pages belong to the page cache and cost no memory of the process's own.
class MappedFile {
 public:
  /// Error(invalid_argument) naming the file where it cannot be opened or mapped, or is no regular file or empty.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

/// Says that mapped bytes will not be read soon: the pages wholly inside leave the process's resident set. They come
/// back from the file when they are read again.
void release_pages(std::span<const std::byte> bytes);

}  // namespace headwater::runtime
