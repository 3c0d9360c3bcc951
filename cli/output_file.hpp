#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/support/mapped_file.hpp"

namespace headwater::cli {

/// A file that comes into being complete or not at all: written under a temporary name in the directory of its
/// target, and renamed by commit(). Destroyed before that (by an error or a signal), it leaves nothing behind.
/// Every error is a Failure that names the target.
class OutputFile {
 public:
  /// Creates the temporary file. A symbolic link at `path` is followed: its target is replaced. Refused: a target
  /// that exists and is no regular file, may not be written, or is `input` itself under whatever name.
  OutputFile(const std::string& path, const runtime::MappedFile& input) : OutputFile(path, &input) {}
  /// nullptr: nothing is read from a file.
  OutputFile(const std::string& path, const runtime::MappedFile* input);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Takes the room on the disk now, where the file system can say, so that a full disk fails before the work.
  void reserve(std::uint64_t bytes);
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Flushes to the disk, closes, and gives the file its name.
  void commit();

 private:
  [[noreturn]] void fail(const std::string& action, int error) const;
  void discard() noexcept;

  std::string path_;       // as given, for messages
  std::string target_;     // behind all symbolic links
  std::string temporary_;  // empty once renamed or removed
  int place_ = -1;         // of the temporary file among those that a signal removes
  int fd_ = -1;
};

}  // namespace headwater::cli
