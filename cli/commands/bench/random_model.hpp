#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cli/commands/bench/shapes.hpp"
#include "runtime/gguf/gguf.hpp"

namespace headwater::bench {

/// A GGUF file of a real shape with random weights, byte by byte what a file on a disk would be. Matrices are of one
/// stored type, with about normal products: each weight has a deviation near 1 / sqrt(row length), so that logits stay
/// finite through every layer. Norms and biases are F32. Its tokenizer is of bytes, with as many tokens as the shape, since
/// OpenVINO GenAI reads no file without one; a shape of fewer than 258 tokens has none ("no_vocab").
/// The same seed gives the same bytes on every machine and for every number of threads.
class RandomModel {
 public:
  /// Plans the file; takes no memory for weights. Error(invalid_argument) where rows of the shape are not whole blocks
  /// of the type.
  RandomModel(const ModelShape& shape, runtime::TensorType type, std::uint64_t seed);

  /// Of the whole file.
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  /// Writes the whole file. Precondition: out.size() == bytes().
  void write(std::span<std::byte> out, int threads) const;

 private:
  struct Matrix {
    std::string name;
    std::int64_t depth;  // elements of a row
    std::int64_t rows;   // of all matrices
    std::int64_t count;  // matrices, one after the other in a tensor of three dimensions
    runtime::TensorType type;
    std::uint64_t offset = 0;  // in the data part
  };
  void add(std::string name, std::int64_t depth, std::int64_t rows, runtime::TensorType type,
           std::int64_t count = 1);
  void add_layer(const ModelShape& shape, std::int64_t index, runtime::TensorType type);
  void write_header(const ModelShape& shape, runtime::TensorType type);

  std::uint64_t seed_;
  std::vector<Matrix> matrices_;
  std::vector<std::byte> header_;  // with the padding before the data
  std::uint64_t data_bytes_ = 0;
  std::uint64_t bytes_ = 0;
};

/// The file in memory, and read.
[[nodiscard]] std::shared_ptr<const runtime::GgufFile> in_memory(const RandomModel& model,
                                                                 const std::string& name, int threads);

}  // namespace headwater::bench
