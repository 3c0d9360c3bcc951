#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace headwater::conformance {

struct JsonTree;

/// A tensor of a safetensors file; `data` points into the mapped file and may have any alignment.
struct FileTensor {
  std::string dtype;  ///< "F32", "BF16", "I32", ...
  std::vector<std::int64_t> shape;
  const std::byte* data = nullptr;
  std::int64_t elements = 0;
};

/// A safetensors file, mapped read-only. The kit's own reader: the program's is under test.
class SafetensorsFile {
 public:
  /// Errors: headwater::Error invalid_argument, naming the file and what is wrong with it: unreadable, shorter than its
  /// header says, a header that is not an object of tensors, ranges that overlap, leave the file or do not fit shape
  /// and type.
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  [[nodiscard]] bool has(const std::string& name) const { return tensors_.count(name) > 0; }
  /// The tensor of that name with that many dimensions and one of these types (comma-separated). Errors:
  /// headwater::Error.
  [[nodiscard]] const FileTensor& tensor(const std::string& name, std::size_t dimensions,
                                         const std::string& dtypes) const;
  [[nodiscard]] bool has_metadata(const std::string& key) const { return metadata_.count(key) > 0; }
  /// An entry of __metadata__. Errors: headwater::Error where it is missing.
  [[nodiscard]] const std::string& metadata(const std::string& key) const;
  [[nodiscard]] const std::string& path() const { return path_; }

  /// `what` with the file's name in front, as an exception.
  [[noreturn]] void refuse(const std::string& what) const;

 private:
  void parse(std::size_t size);
  void read_metadata(const JsonTree& entry);

  std::string path_;
  std::byte* bytes_ = nullptr;
  std::size_t size_ = 0;
  std::map<std::string, FileTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

/// F32, F16 or BF16 elements widened to floats; 32-bit integers. The tensor's type has been checked.
[[nodiscard]] std::vector<float> read_floats(const FileTensor& tensor);
[[nodiscard]] std::vector<std::int32_t> read_integers(const FileTensor& tensor);

}  // namespace headwater::conformance
