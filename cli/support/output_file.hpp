#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "cli/support/descriptor.hpp"
#include "runtime/support/mapped_file.hpp"

namespace headwater::cli {

/// A file that comes into being complete or not at all: written under a temporary name in the directory of its
/// target, and renamed by commit(). Destroyed before that (by an error or a signal), it leaves nothing behind.
/// What cannot be replaced (standard output, named `-`, a character device, a pipe) gets the whole content from commit().
/// Every error is a Failure that names the target.
class OutputFile {
 public:
  /// Creates the temporary file. A symbolic link at `path` is followed: its target is replaced, and keeps its permissions,
  /// and its owner and group where this process may give them. Not followed: a link in a sticky directory for everybody,
  /// unless it belongs to this user or to the directory's (what Linux refuses with fs.protected_symlinks). Refused: a
  /// directory or block device, a target that may not be written, or is `input` itself under whatever name.
  OutputFile(const std::string& path, const runtime::MappedFile& input) : OutputFile(path, &input) {}
  /// nullptr: nothing is read from a file.
  OutputFile(const std::string& path, const runtime::MappedFile* input);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Takes the room on the disk now, where the file system can say, so that a full disk fails before the work.
  void reserve(std::uint64_t bytes);
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Whether commit() writes the target in place.
  [[nodiscard]] bool is_stream() const { return to_stream_; }
  /// Flushes to the disk, closes, and gives the file its name; or copies it to where it cannot be replaced.
  void commit();

 private:
  [[noreturn]] void fail(const std::string& action, int error) const;
  void find_stream();
  void find_place();
  void check_target(const runtime::MappedFile* input);
  void create_temporary();
  void keep_owner_and_mode();
  void copy_to_stream();
  void forget_temporary() noexcept;

  std::string path_;   // as given, for messages
  Descriptor stream_;  // what is written instead of replaced; standard output has none
  bool to_stream_ = false;
  Descriptor directory_;  // behind all symbolic links
  std::string directory_name_;
  std::string name_;         // of the target in it
  bool exists_ = false;      // there is a file of that name, whose ...
  std::uint32_t mode_ = 0;   // ... permissions, ...
  std::uint32_t owner_ = 0;  // ... owner ...
  std::uint32_t group_ = 0;  // ... and group are kept
  std::string temporary_;    // empty once renamed or removed
  int place_ = -1;           // of the temporary file among those that a signal removes
  Descriptor file_;
};

}  // namespace headwater::cli
