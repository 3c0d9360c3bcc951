#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/gguf/replacement.hpp"
#include "runtime/gguf/tensor_type.hpp"

namespace headwater::runtime {

/// One tensor of a GGUF file. `data` lies in the mapped file (little-endian, as stored, at a multiple of the file's
/// alignment) and lives as long as the GgufFile.
struct Tensor {
  std::string name;
  TensorType type = TensorType::f32;
  std::vector<std::int64_t>
      dims;  ///< in ggml's order: dims[0] is contiguous, a matrix is dims[1] rows of dims[0]
  std::span<const std::byte> data;

  /// Product of all dimensions but the first.
  [[nodiscard]] std::int64_t rows() const;
  /// Row i as stored: row_bytes(type, dims[0]) bytes. Precondition: 0 <= i < rows().
  [[nodiscard]] const std::byte* row(std::int64_t i) const;
};

/// A GGUF model, version 2 or 3, mapped into memory: metadata by key, tensors by name. Every count, offset, length and
/// alignment of the file is checked while it is opened, before anything is allocated by it or read through it.
///
/// All failures are headwater::Error(invalid_argument) with one line: the file, the key or tensor, the value found and
/// what is allowed. Tensor data is not looked at. A file must not be truncated by others while it is mapped.
class GgufFile {
 public:
  /// Opens `path`. For the first file of a split model (`name-00001-of-00003.gguf`) opens all of them; metadata is
  /// the first one's, tensors are those of all.
  [[nodiscard]] static GgufFile open(const std::string& path);
  /// Reads a whole unsplit file that lies in memory, which must outlive the result. `name` stands for the file in
  /// error messages.
  [[nodiscard]] static GgufFile parse(std::span<const std::byte> bytes, const std::string& name);

  GgufFile(GgufFile&&) noexcept;
  GgufFile& operator=(GgufFile&&) noexcept;
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;
  ~GgufFile();

  /// Of the (first) file.
  [[nodiscard]] const std::string& path() const;
  [[nodiscard]] std::uint32_t version() const;
  /// Bytes of all files together.
  [[nodiscard]] std::uint64_t file_bytes() const;

  /// FNV-1a of the bytes before the tensors' data in all files that open() mapped: metadata and tensor tables; and of what
  /// was replaced.
  [[nodiscard]] std::uint64_t head_hash() const;

  // ---- metadata. A getter refuses a missing key (the _or form gives `fallback` instead), another type of value, and
  // a value out of range; the error names the key.

  [[nodiscard]] bool has(std::string_view key) const;
  /// Whether the key is there, with an array.
  [[nodiscard]] bool is_array(std::string_view key) const;
  /// Any integer type of the file, if min <= value <= max.
  [[nodiscard]] std::int64_t integer(std::string_view key, std::int64_t min, std::int64_t max) const;
  [[nodiscard]] std::int64_t integer_or(std::string_view key, std::int64_t min, std::int64_t max,
                                        std::int64_t fallback) const;
  /// F32, F64 or an integer; finite.
  [[nodiscard]] double number(std::string_view key) const;
  [[nodiscard]] double number_or(std::string_view key, double fallback) const;
  [[nodiscard]] bool boolean(std::string_view key) const;
  [[nodiscard]] bool boolean_or(std::string_view key, bool fallback) const;
  /// Bytes as stored, without a promise that they are UTF-8; the view lives as long as the file.
  [[nodiscard]] std::string_view text(std::string_view key) const;
  [[nodiscard]] std::string_view text_or(std::string_view key, std::string_view fallback) const;
  /// Arrays, of any length that the file really has.
  [[nodiscard]] std::vector<std::string_view> texts(std::string_view key) const;
  [[nodiscard]] std::vector<std::int64_t> integers(std::string_view key) const;
  [[nodiscard]] std::vector<double> numbers(std::string_view key) const;
  [[nodiscard]] std::vector<bool> booleans(std::string_view key) const;
  /// Elements of the array under `key`.
  [[nodiscard]] std::uint64_t array_length(std::string_view key) const;
  /// Puts a value in place of the file's: all getters give it, as if the file had been written so, and refusals of it name
  /// its source.
  void replace(const Replacement& with);
  [[nodiscard]] bool replaced(std::string_view key) const;
  /// What a message calls this key: the source of a value that was replaced, else the key.
  [[nodiscard]] std::string_view spoken(std::string_view key) const;
  /// All keys, in the file's order, then those that were added.
  [[nodiscard]] std::vector<std::string_view> keys() const;

  // ---- tensors

  /// All tensors, in the order of the files.
  [[nodiscard]] std::span<const Tensor> tensors() const;
  /// nullptr where there is none of that name.
  [[nodiscard]] const Tensor* find_tensor(std::string_view name) const;
  [[nodiscard]] const Tensor& tensor(std::string_view name) const;
  /// The tensor, if it has exactly these dimensions (ggml's order); the error shows both.
  [[nodiscard]] const Tensor& tensor(std::string_view name, std::span<const std::int64_t> dims) const;

  /// Refuses tensors that do not lie side by side, as ggml writes and reads them: their sizes or types are wrong. Apart from
  /// open(), so that a caller may name first what is missing or has the wrong shape.
  void refuse_gaps() const;

  /// Says that a tensor will not be read soon (its values were packed elsewhere): its pages leave the resident set.
  void release(const Tensor& tensor) const;

  /// Error(invalid_argument) "FILE: what": for checks that callers add to those made here.
  [[noreturn]] void refuse(const std::string& what) const;

 private:
  struct State;
  explicit GgufFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace headwater::runtime
