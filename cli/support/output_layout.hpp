#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cli/support/safetensors.hpp"

namespace headwater::cli {

/// Where the header and the tensors of a safetensors file to be written stand. Add the metadata and the tensors in
/// the order of the file, those with larger elements first: then every tensor is aligned to its element.
class OutputLayout {
 public:
  void add_metadata(std::string key, std::string value) {
    metadata_.emplace_back(std::move(key), std::move(value));
  }
  /// Failure where the sizes overflow.
  void add(const std::string& name, TensorType type, const std::vector<std::uint64_t>& shape);

  /// Computes the header; nothing can be added afterwards.
  void close();

  /// The length and the JSON, padded with spaces to a multiple of 8 bytes.
  [[nodiscard]] const std::string& header() const { return header_; }
  /// Where tensor `name` begins in the file.
  [[nodiscard]] std::uint64_t offset(std::string_view name) const;
  /// Size of the whole file.
  [[nodiscard]] std::uint64_t file_bytes() const { return header_.size() + data_bytes_; }

 private:
  struct Entry {
    std::string name;
    TensorType type;
    std::vector<std::uint64_t> shape;
    std::uint64_t begin;
    std::uint64_t end;
  };
  std::vector<std::pair<std::string, std::string>> metadata_;
  std::vector<Entry> entries_;
  std::uint64_t data_bytes_ = 0;
  std::string header_;
};

}  // namespace headwater::cli
